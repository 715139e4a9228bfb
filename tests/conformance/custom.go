package main

import (
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"k8s.io/metrics/pkg/client/custom_metrics"
)

const customGroup = "custom.metrics.k8s.io"

var customVersions = []string{"v1beta1", "v1beta2"}

var customChecks = []Check{
	{
		ID: "custom/resource-lists", Level: must, Needs: []need{custom},
		Promise: "v1beta1 and v1beta2 are non-empty APIResourceLists, without verbs other than get and list",
		Why:     "HPAs pick the version by discovery; an empty list is an error to cached clients",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach(customVersions, func(version string) error {
				list := metav1.APIResourceList{}
				answer, err := e.get("/apis/"+customGroup+"/"+version, accept("application/json"))
				if err == nil {
					err = answer.json(&list)
				}
				if err == nil && (list.GroupVersion != customGroup+"/"+version || len(list.APIResources) == 0) {
					err = fmt.Errorf("%s", answer)
				}
				for _, resource := range list.APIResources {
					for _, verb := range resource.Verbs {
						if verb != "get" && verb != "list" {
							return fmt.Errorf("%s has %v", resource.Name, resource.Verbs)
						}
					}
				}
				observed += fmt.Sprintf("%s: %d resources; ", version, len(list.APIResources))
				return inCase(version, err)
			})
			return strings.TrimSuffix(observed, "; "), err
		},
	},
	{
		ID: "custom/client-v1beta1", Level: must, Needs: []need{custom},
		Promise: "the versioned client of k8s.io/metrics gets the object's single value in v1beta1",
		Why:     "HPAs of clusters where only it is registered",
		Run:     func(e *Env) (string, error) { return e.byCustomClient("v1beta1", "application/json") },
	},
	{
		ID: "custom/client-v1beta2", Level: must, Needs: []need{custom},
		Promise: "the versioned client gets it in v1beta2",
		Why:     "what HPAs prefer",
		Run:     func(e *Env) (string, error) { return e.byCustomClient("v1beta2", "application/json") },
	},
	{
		ID: "custom/client-protobuf", Level: must, Needs: []need{custom},
		Promise: "the versioned client gets it in v1beta2, set to protobuf as in kube-controller-manager",
		Why:     "it is the client that scales",
		Run:     func(e *Env) (string, error) { return e.byCustomClient("v1beta2", protobufType) },
	},
	{
		ID: "custom/client-discovers", Level: must, Needs: []need{proxied, custom},
		Promise: "the HPA's own client finds the version by discovery and gets the value",
		Why:     "it never requests a version that discovery lacks",
		Run:     (*Env).byDiscovery,
	},
	{
		ID: "custom/object", Level: must, Needs: []need{custom},
		Promise: "the item names the requested object and metric",
		Why:     "the HPA shows them, and tools match on them",
		Run: func(e *Env) (string, error) {
			item, err := e.customValue("v1beta2", "application/json")
			if err != nil {
				return "", err
			}
			kind, name := e.object()
			described := item.DescribedObject
			observed := fmt.Sprintf("%s %s/%s, %s", described.Kind, described.Namespace, described.Name, item.Metric.Name)
			ok := described.Kind == kind.Kind && described.Name == name && described.Namespace == e.namespace && item.Metric.Name == e.customName()
			return observed, errorUnless(ok, "%s", observed)
		},
	},
	{
		ID: "custom/quantity", Level: must, Needs: []need{custom},
		Promise: "the value is not negative and at most 9223372036854775, and has a timestamp",
		Why:     "an HPA treats a negative number as an overflow and scales to the maximum",
		Run: func(e *Env) (string, error) {
			item, err := e.customValue("v1beta2", "application/json")
			if err != nil {
				return "", err
			}
			ok := item.Value.Sign() >= 0 && item.Value.AsApproximateFloat64() <= math.MaxInt64/1000 && !item.Timestamp.IsZero()
			return item.Value.String(), errorUnless(ok, "%s of %s", item.Value.String(), item.Timestamp)
		},
	},
	{
		ID: "custom/by-selector", Level: must, Needs: []need{custom, customSet},
		Promise: "`*` with a labelSelector returns one item per selected object",
		Why:     "HPAs of type Pods ask so",
		Run: func(e *Env) (string, error) {
			client, err := e.customClient("v1beta2", "application/json")
			if err != nil {
				return "", err
			}
			selector, err := labels.Parse(e.customList)
			if err != nil {
				return "", err
			}
			kind, _ := e.object()
			list, err := client.NamespacedMetrics(e.namespace).GetForObjects(kind, selector, e.customName(), labels.Everything())
			if err != nil {
				return "", err
			}
			observed := map[string]bool{}
			for _, item := range list.Items {
				observed[item.DescribedObject.Name] = true
			}
			return strings.Join(sorted(observed), ", "), errorUnless(len(list.Items) > 0 && len(observed) == len(list.Items), "%d items of %d objects", len(list.Items), len(observed))
		},
	},
	{
		ID: "custom/unknown", Level: must, Needs: []need{custom},
		Promise: "an unknown object and an unknown metric get a 404 Status, or no items",
		Why:     "both keep the replicas and say why",
		Run: func(e *Env) (string, error) {
			kind, name := e.object()
			resource := e.resourceOf(kind)
			return "404 or no items", forEach([]string{resource + "/conformance-no-such-object/" + e.customName(), resource + "/" + name + "/" + unknownMetric}, func(path string) error {
				answer, err := e.get("/apis/" + customGroup + "/v1beta2/namespaces/" + e.namespace + "/" + path)
				if err == nil && answer.Code == http.StatusOK {
					var list v1beta2.MetricValueList
					if err = answer.json(&list); err == nil && (len(list.Items) > 0 || list.Kind != "MetricValueList") {
						err = fmt.Errorf("%s", answer)
					}
				} else if err == nil {
					_, err = answer.refused(http.StatusNotFound, metav1.StatusReasonNotFound)
				}
				return inCase(path, err)
			})
		},
	},
	{
		ID: "custom/malformed", Level: should, Needs: []need{custom},
		Promise: "a malformed labelSelector or metricLabelSelector gets 400 BadRequest",
		Why:     "the HPA's condition then shows the error to the user",
		Run: func(e *Env) (string, error) {
			kind, name := e.object()
			return "400", forEach([]string{"*/" + e.customName() + "?labelSelector=", name + "/" + e.customName() + "?metricLabelSelector="}, func(rest string) error {
				answer, err := e.get("/apis/" + customGroup + "/v1beta2/namespaces/" + e.namespace + "/" + e.resourceOf(kind) + "/" + rest + url.QueryEscape("a=b=c"))
				if err == nil {
					_, err = answer.refused(http.StatusBadRequest, metav1.StatusReasonBadRequest)
				}
				return inCase(rest, err)
			})
		},
	},
	{
		ID: "custom/protobuf", Level: should, Needs: []need{custom},
		Promise: "application/vnd.kubernetes.protobuf gets protobuf",
		Why:     "what the HPA prefers",
		Run: func(e *Env) (string, error) {
			kind, name := e.object()
			answer, err := e.get("/apis/"+customGroup+"/v1beta2/namespaces/"+e.namespace+"/"+e.resourceOf(kind)+"/"+name+"/"+e.customName(), accept(protobufType))
			if err == nil && (answer.Code != http.StatusOK || answer.contentType() != protobufType) {
				err = fmt.Errorf("%s", answer)
			}
			return fmt.Sprintf("%d bytes", len(answer.body())), err
		},
	},
}

// object is --custom-object: KIND[.GROUP]/NAME.
func (e *Env) object() (schema.GroupKind, string) {
	kind, name, _ := strings.Cut(e.customObject, "/")
	return schema.ParseGroupKind(kind), name
}

func (e *Env) customName() string {
	if e.customMetric != "" {
		return e.customMetric
	}
	return e.metric
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
		kind, _ := e.object()
		version := schema.GroupVersion{Group: kind.Group, Version: "v1"}
		mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{version})
		mapper.Add(version.WithKind(kind.Kind), meta.RESTScopeNamespace)
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

func (e *Env) byDiscovery() (string, error) {
	client, err := discovery.NewDiscoveryClientForConfig(e.config)
	if err != nil {
		return "", err
	}
	mapper, err := e.mapper()
	if err != nil {
		return "", err
	}
	versions := custom_metrics.NewAvailableAPIsGetter(client)
	kind, name := e.object()
	item, err := custom_metrics.NewForConfig(e.config, mapper, versions).NamespacedMetrics(e.namespace).GetForObject(kind, name, e.customName(), labels.Everything())
	if err != nil {
		return "", err
	}
	version, err := versions.PreferredVersion()
	return fmt.Sprintf("%s by %s", item.Value.String(), version), err
}
