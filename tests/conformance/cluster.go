package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	authorization "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The HPA controller of kube-controller-manager, with or without a service account per controller.
var autoscalers = []authorization.SubjectAccessReviewSpec{
	{User: "system:serviceaccount:kube-system:horizontal-pod-autoscaler", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}},
	{User: "system:kube-controller-manager", Groups: []string{"system:authenticated"}},
}

var clusterChecks = []Check{
	{
		ID: "cluster/available", Level: must, Needs: []need{proxied},
		Promise: "the APIService is Available",
		Why:     "until then, kube-apiserver itself answers every read with 503",
		Run:     (*Env).available,
	},
	{
		ID: "cluster/verified", Level: should, Needs: []need{proxied},
		Promise: "the APIService has a caBundle and does not skip verification",
		Why:     "with insecureSkipTLSVerify, any pod with the Service's address can answer for the server and scale every workload",
		Run: func(e *Env) (string, error) {
			service, err := e.apiService()
			if err != nil {
				return "", err
			}
			if service.Spec.InsecureSkipTLSVerify || len(service.Spec.CABundle) == 0 {
				return "", fmt.Errorf("insecureSkipTLSVerify %v, caBundle of %d bytes", service.Spec.InsecureSkipTLSVerify, len(service.Spec.CABundle))
			}
			return fmt.Sprintf("caBundle of %d bytes", len(service.Spec.CABundle)), nil
		},
	},
	{
		ID: "cluster/fresh", Level: must, Needs: []need{proxied},
		Promise: "the cluster's merged discovery has the version, and it is not Stale",
		Why:     "a Stale version blocks the deletion of every namespace",
		Run:     (*Env).fresh,
	},
	{
		ID: "cluster/hpa-may-read", Level: must, Needs: []need{proxied},
		Promise: "the HPA controller may list the metric",
		Why:     "kube-apiserver checks RBAC before it proxies",
		Run:     (*Env).hpaMayRead,
	},
	{
		ID: "cluster/can-i", Level: should, Needs: []need{proxied},
		Promise: "`kubectl auth can-i list METRIC.external.metrics.k8s.io` answers yes for the user of this suite",
		Why:     "it is the first thing that people try",
		Run: func(e *Env) (string, error) {
			client, err := kubernetes.NewForConfig(e.config)
			if err != nil {
				return "", err
			}
			review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: e.attributes()}}
			review, err = client.AuthorizationV1().SelfSubjectAccessReviews().Create(context.Background(), review, metav1.CreateOptions{})
			if err != nil {
				return "", err
			}
			return "yes", errorUnless(review.Status.Allowed, "no: %s", review.Status.Reason)
		},
	},
	{
		ID: "cluster/namespace-goes", Level: must, Needs: []need{proxied, namespaceAllowed},
		Promise: "a new namespace can be deleted within 60 s while the group is registered",
		Why:     "the namespace controller reads every group's discovery first, so a metrics server that breaks discovery breaks the cluster",
		Run:     (*Env).namespaceIsDeleted,
	},
}

type apiService struct {
	Spec struct {
		InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
		CABundle              []byte `json:"caBundle"`
		Service               *struct {
			Namespace, Name string
		} `json:"service"`
	} `json:"spec"`
	Status struct {
		Conditions []struct{ Type, Status, Reason, Message string } `json:"conditions"`
	} `json:"status"`
}

func (e *Env) apiService() (*apiService, error) {
	service := &apiService{}
	answer, err := e.get("/apis/apiregistration.k8s.io/v1/apiservices/"+externalVersion+"."+externalGroup, accept("application/json"))
	if err == nil {
		err = answer.json(service)
	}
	return service, err
}

func (e *Env) available() (string, error) {
	service, err := e.apiService()
	if err != nil {
		return "", err
	}
	for _, condition := range service.Status.Conditions {
		if condition.Type == "Available" {
			observed := fmt.Sprintf("%s %s: %s", condition.Status, condition.Reason, condition.Message)
			return observed, errorUnless(condition.Status == "True", "%s", observed)
		}
	}
	return "", fmt.Errorf("no condition Available")
}

func (e *Env) fresh() (string, error) {
	answer, err := e.get("/apis", accept(discoveryV2))
	if err != nil {
		return "", err
	}
	list := &apidiscovery.APIGroupDiscoveryList{}
	if err := json.Unmarshal(answer.Body, list); err != nil {
		return "", err
	}
	version := ownVersion(list)
	if version == nil {
		return "", fmt.Errorf("%s is not among %d groups", externalGV, len(list.Items))
	}
	observed := fmt.Sprintf("%s, %d resources", version.Freshness, len(version.Resources))
	return observed, errorUnless(version.Freshness == apidiscovery.DiscoveryFreshnessCurrent, "%s", observed)
}

func (e *Env) attributes() *authorization.ResourceAttributes {
	return &authorization.ResourceAttributes{Namespace: e.namespace, Verb: "list", Group: externalGroup, Version: externalVersion, Resource: e.metric}
}

func (e *Env) hpaMayRead() (string, error) { return e.mayBeRead(e.attributes()) }

func (e *Env) namespaceIsDeleted() (string, error) {
	client, err := kubernetes.NewForConfig(e.config)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	namespaces := client.CoreV1().Namespaces()
	created, err := namespaces.Create(ctx, &core.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "conformance-"}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := namespaces.Delete(ctx, created.Name, metav1.DeleteOptions{}); err != nil {
		return "", err
	}
	for {
		remaining, err := namespaces.Get(ctx, created.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "after " + milliseconds(time.Since(began)), nil
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("%s is still there: %+v", created.Name, remaining.Status.Conditions)
		}
		if err != nil && !apierrors.IsTimeout(err) {
			return "", fmt.Errorf("%s: %w", created.Name, err)
		}
		time.Sleep(500 * time.Millisecond)
	}
}
