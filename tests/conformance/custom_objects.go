package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"k8s.io/metrics/pkg/client/custom_metrics"
)

const customGroup = "custom.metrics.k8s.io"

// The last is what an HPA prefers.
var customVersions = []string{"v1beta1", "v1beta2"}

func customPath(version string) string { return "/apis/" + customGroup + "/" + version }

func shortCustom(path string) string { return strings.TrimPrefix(path, "/apis/"+customGroup) }

// splitObject reads KIND[.GROUP]/NAME.
func splitObject(text string) (schema.GroupKind, string) {
	kind, name, _ := strings.Cut(text, "/")
	return schema.ParseGroupKind(kind), name
}

func (e *Env) object() (schema.GroupKind, string) { return splitObject(e.customObject) }

func (e *Env) customName() string { return orText(e.customMetric, e.metric) }

func (e *Env) customRootName() string { return orText(e.customRootMetric, e.customName()) }

// customObjectPath is the path of the metric under test of an object in the namespace, or of `*`.
func (e *Env) customObjectPath(version, name string) string {
	kind, _ := e.object()
	return customPath(version) + "/namespaces/" + e.namespace + "/" + e.resourceOf(kind) + "/" + name + "/" + e.customName()
}

// resourceOf returns the kind's name in a path, for example deployments.apps.
func (e *Env) resourceOf(kind schema.GroupKind) string {
	mapper, err := e.mapper()
	if err == nil {
		if mapping, err := mapper.RESTMapping(kind); err == nil {
			return mapping.Resource.GroupResource().String()
		}
	}
	return strings.ToLower(kind.Kind) + "s"
}

// mapper returns the cluster's REST mapper, or in direct mode one that guesses plurals.
func (e *Env) mapper() (meta.RESTMapper, error) {
	if e.direct {
		namespaced, _ := e.object()
		root, _ := splitObject(e.customRootObject)
		mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: namespaced.Group, Version: "v1"}, {Group: root.Group, Version: "v1"}})
		mapper.Add(namespaced.WithVersion("v1"), meta.RESTScopeNamespace)
		mapper.Add(root.WithVersion("v1"), meta.RESTScopeRoot)
		return mapper, nil
	}
	client, err := discovery.NewDiscoveryClientForConfig(e.config)
	if err != nil {
		return nil, err
	}
	resources, err := restmapper.GetAPIGroupResources(client)
	if err != nil {
		return nil, err
	}
	return restmapper.NewDiscoveryRESTMapper(resources), nil
}

func (e *Env) customClient(version, contentType string) (custom_metrics.CustomMetricsClient, error) {
	mapper, err := e.mapper()
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(e.config)
	config.ContentType = contentType
	return custom_metrics.NewForVersionForConfig(config, mapper, schema.GroupVersion{Group: customGroup, Version: version})
}

func (e *Env) customValue(version, contentType string) (*v1beta2.MetricValue, error) {
	client, err := e.customClient(version, contentType)
	if err != nil {
		return nil, err
	}
	kind, name := e.object()
	return client.NamespacedMetrics(e.namespace).GetForObject(kind, name, e.customName(), labels.Everything())
}

func (e *Env) byCustomClient(version, contentType string) (string, error) {
	item, err := e.customValue(version, contentType)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s of %s %s", item.Value.String(), item.DescribedObject.Kind, item.DescribedObject.Name), nil
}

// byDiscovery reads as kube-controller-manager sets the client up: the version comes from discovery, the answers are protobuf.
func (e *Env) byDiscovery() (string, error) {
	client, err := discovery.NewDiscoveryClientForConfig(e.config)
	if err != nil {
		return "", err
	}
	mapper, err := e.mapper()
	if err != nil {
		return "", err
	}
	config := rest.CopyConfig(e.config)
	config.ContentType = protobufType
	versions := custom_metrics.NewAvailableAPIsGetter(client)
	kind, name := e.object()
	metrics := custom_metrics.NewForConfig(config, mapper, versions).NamespacedMetrics(e.namespace)
	item, err := metrics.GetForObject(kind, name, e.customName(), labels.Everything())
	if err != nil {
		return "", err
	}
	version, err := versions.PreferredVersion()
	return fmt.Sprintf("%s by %s", item.Value.String(), version), err
}

// eachCustomList inspects the resource list of each version.
func (e *Env) eachCustomList(inspect func(*metav1.APIResourceList) error) (string, error) {
	observed := ""
	err := forEach(customVersions, func(version string) error {
		list := &metav1.APIResourceList{}
		answer, err := e.get(customPath(version), accept("application/json"))
		if err == nil {
			err = answer.json(list)
		}
		if err == nil && (list.Kind != "APIResourceList" || list.GroupVersion != customGroup+"/"+version) {
			err = fmt.Errorf("%s", answer)
		}
		if err == nil {
			err = inspect(list)
		}
		observed += fmt.Sprintf("%s: %d resources; ", version, len(list.APIResources))
		return inCase(version, err)
	})
	return strings.TrimSuffix(observed, "; "), err
}

func (e *Env) customEntries() (string, error) {
	return e.eachCustomList(func(list *metav1.APIResourceList) error {
		observed := map[string]bool{}
		return forEach(list.APIResources, func(r metav1.APIResource) error {
			resource, metric, _ := strings.Cut(r.Name, "/")
			switch {
			case resource == "" || metric == "" || r.Kind != "MetricValueList" || len(r.Verbs) == 0:
				entry, err := json.Marshal(r)
				return fmt.Errorf("%s %w", entry, err)
			case observed[r.Name]:
				return fmt.Errorf("%s is listed twice", r.Name)
			}
			observed[r.Name] = true
			return nil
		})
	})
}

func (e *Env) listsCustom(name string, namespaced bool) (string, error) {
	observed, err := e.eachCustomList(func(list *metav1.APIResourceList) error {
		i := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
		if i < 0 {
			return fmt.Errorf("%s is not among %d entries, %s", name, len(list.APIResources), first(list))
		}
		return errorUnless(list.APIResources[i].Namespaced == namespaced, "%s has namespaced: %v", name, !namespaced)
	})
	return name + " in " + observed, err
}

// versionsAvailable checks the APIServices of a group.
func (e *Env) versionsAvailable(group string, versions []string) (string, error) {
	var observed []string
	err := forEach(versions, func(version string) error {
		service := &apiService{}
		answer, err := e.get("/apis/apiregistration.k8s.io/v1/apiservices/"+version+"."+group, accept("application/json"))
		if err != nil || answer.Code == 404 {
			return err
		}
		if err := answer.json(service); err != nil {
			return err
		}
		for _, condition := range service.Status.Conditions {
			if condition.Type == "Available" {
				observed = append(observed, version+" "+condition.Reason)
				return errorUnless(condition.Status == "True", "%s: %s %s: %s", version, condition.Status, condition.Reason, condition.Message)
			}
		}
		return fmt.Errorf("%s has no condition Available", version)
	})
	if err == nil && len(observed) == 0 {
		err = fmt.Errorf("no APIService of %s", group)
	}
	return strings.Join(observed, ", "), err
}

// mayBeRead returns the HPA controller's user that has the right, under one of the two names that the controller has.
func (e *Env) mayBeRead(attributes *authorization.ResourceAttributes) (string, error) {
	client, err := kubernetes.NewForConfig(e.config)
	if err != nil {
		return "", err
	}
	var refusals []string
	for _, spec := range autoscalers {
		spec.ResourceAttributes = attributes
		review := &authorization.SubjectAccessReview{Spec: spec}
		review, err = client.AuthorizationV1().SubjectAccessReviews().Create(context.Background(), review, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		if review.Status.Allowed {
			return spec.User, nil
		}
		refusals = append(refusals, spec.User)
	}
	return "", fmt.Errorf("neither of %s may %s %s", strings.Join(refusals, ", "), attributes.Verb, attributes.Resource)
}

func (e *Env) hpaMayReadCustom() (string, error) {
	kind, _ := e.object()
	return e.mayBeRead(&authorization.ResourceAttributes{
		Namespace: e.namespace, Verb: "get", Group: customGroup, Version: "v1beta2", Resource: e.resourceOf(kind), Subresource: e.customName(), Name: "*",
	})
}

func (e *Env) selectedPods() (string, error) {
	if kind, _ := e.object(); kind.Kind != "Pod" || kind.Group != "" {
		return "", skip("--custom-object is no Pod, and an HPA selects only pods")
	}
	names, err := e.selectedObjects("v1beta2", e.customList)
	if err != nil {
		return "", err
	}
	client, err := kubernetes.NewForConfig(e.config)
	if err != nil {
		return "", err
	}
	pods, err := client.CoreV1().Pods(e.namespace).List(context.Background(), metav1.ListOptions{LabelSelector: e.customList})
	if err != nil {
		return "", err
	}
	selected := map[string]bool{}
	for _, pod := range pods.Items {
		selected[pod.Name] = true
	}
	return fmt.Sprintf("%d of %d pods", len(names), len(selected)), forEach(names, func(name string) error {
		return errorUnless(selected[name], "%s is not selected by %s", name, e.customList)
	})
}

func (e *Env) rootObject() (string, error) {
	kind, name := splitObject(e.customRootObject)
	observed := ""
	err := forEach(customVersions, func(version string) error {
		client, err := e.customClient(version, protobufType)
		if err != nil {
			return err
		}
		item, err := client.RootScopedMetrics().GetForObject(kind, name, e.customRootName(), labels.Everything())
		if err != nil {
			return inCase(version, err)
		}
		described := item.DescribedObject
		observed = item.Value.String()
		return errorUnless(described.Kind == kind.Kind && described.Name == name && described.Namespace == "" && item.Metric.Name == e.customRootName(),
			"%s: %s %s/%s, %s", version, described.Kind, described.Namespace, described.Name, item.Metric.Name)
	})
	return observed, err
}

func (e *Env) namespaceMetric() (string, error) {
	observed := ""
	err := forEach(customVersions, func(version string) error {
		client, err := e.customClient(version, protobufType)
		if err != nil {
			return err
		}
		item, err := client.RootScopedMetrics().GetForObject(schema.GroupKind{Kind: "Namespace"}, e.namespace, e.customNamespaceMetric, labels.Everything())
		if err != nil {
			return inCase(version, err)
		}
		described := item.DescribedObject
		observed = item.Value.String()
		return errorUnless(described.Kind == "Namespace" && described.Name == e.namespace && item.Metric.Name == e.customNamespaceMetric,
			"%s: %s %s, %s", version, described.Kind, described.Name, item.Metric.Name)
	})
	return observed, err
}
