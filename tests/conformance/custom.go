package main

import (
	"fmt"
	"math"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
)

// The clients' view: discovery, and single values and lists by the client of k8s.io/metrics.
var customChecks = []Check{
	{
		ID: "custom/available", Level: must, Needs: []need{proxied, custom},
		Promise: "at least one version has an APIService, and each that has one is Available",
		Why:     "kube-apiserver itself answers every read of an unavailable version with 503",
		Run:     func(e *Env) (string, error) { return e.versionsAvailable(customGroup, customVersions) },
	},
	{
		ID: "custom/hpa-may-read", Level: must, Needs: []need{proxied, custom},
		Promise: "the HPA controller may get the metric of every object of the kind",
		Why:     "kube-apiserver checks RBAC before it proxies, and an HPA of type Pods reads the object `*`",
		Run:     (*Env).hpaMayReadCustom,
	},
	{
		ID: "custom/resource-lists", Level: must, Needs: []need{custom},
		Promise: "v1beta1 and v1beta2 are non-empty APIResourceLists, without verbs other than get and list",
		Why:     "HPAs pick the version by discovery; an empty list is an error to cached clients",
		Run: func(e *Env) (string, error) {
			return e.eachCustomList(func(list *metav1.APIResourceList) error {
				for _, resource := range list.APIResources {
					for _, verb := range resource.Verbs {
						if verb != "get" && verb != "list" {
							return fmt.Errorf("%s has %v", resource.Name, resource.Verbs)
						}
					}
				}
				return errorUnless(len(list.APIResources) > 0, "the list is empty")
			})
		},
	},
	{
		ID: "custom/entries", Level: must, Needs: []need{custom},
		Promise: "every entry is RESOURCE/METRIC with the kind MetricValueList, has verbs, and is listed once",
		Why:     "a name without a slash is a resource to kubectl and to controllers, which then list and watch it; clients panicked on entries without a kind",
		Run:     (*Env).customEntries,
	},
	{
		ID: "custom/lists-metric", Level: should, Needs: []need{custom},
		Promise: "the metric under test is listed as RESOURCE/METRIC of the object's resource, with namespaced: true",
		Why:     "the list is the only way to find out what can be read",
		Run: func(e *Env) (string, error) {
			kind, _ := e.object()
			return e.listsCustom(e.resourceOf(kind)+"/"+e.customName(), true)
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
		Promise: "the versioned client gets it in both versions, set to protobuf as in kube-controller-manager",
		Why:     "it is the client that scales",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach(customVersions, func(version string) (err error) {
				observed, err = e.byCustomClient(version, protobufType)
				return inCase(version, err)
			})
			return observed, err
		},
	},
	{
		ID: "custom/client-discovers", Level: must, Needs: []need{proxied, custom},
		Promise: "the HPA's own client, set to protobuf, finds the version by discovery and gets the value",
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
		ID: "custom/object-version", Level: should, Needs: []need{custom},
		Promise: "describedObject has the apiVersion of the object: v1 of a Pod, apps/v1 of a Deployment",
		Why:     "with it, the reference leads to the object; \"/v1\" is no version that a client can read",
		Run: func(e *Env) (string, error) {
			item, err := e.customValue("v1beta2", "application/json")
			if err != nil {
				return "", err
			}
			kind, _ := e.object()
			version := item.DescribedObject.APIVersion
			group, _, qualified := strings.Cut(version, "/")
			ok := version != "" && (kind.Group == "" && !qualified || kind.Group != "" && qualified && group == kind.Group)
			return version, errorUnless(ok, "apiVersion %q of a %s", version, kind)
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
		Promise: "`*` with a labelSelector returns one item per selected object, in both versions",
		Why:     "HPAs of type Pods ask so, and divide by the number of pods",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach(customVersions, func(version string) error {
				names, err := e.selectedObjects(version, e.customList)
				observed = strings.Join(names, ", ")
				return inCase(version, err)
			})
			return observed, err
		},
	},
	{
		ID: "custom/selected-pods", Level: must, Needs: []need{proxied, custom, customSet},
		Promise: "the items of `*` with a labelSelector are those of pods which the selector selects, by their labels",
		Why:     "the HPA matches items to its pods by name, and counts a pod without one as idle or as busy",
		Run:     (*Env).selectedPods,
	},
	{
		ID: "custom/selects-none", Level: must, Needs: []need{custom},
		Promise: "`*` with a labelSelector that no object has returns no items, or a 404 Status",
		Why:     "items would be of another workload's pods",
		Run: func(e *Env) (string, error) {
			return e.customEmpty("*", "labelSelector=conformance-absent%3Dx")
		},
	},
	{
		ID: "custom/metric-selector", Level: must, Needs: []need{custom},
		Promise: "a metricLabelSelector that the series does not satisfy gets no value, one that it satisfies (!absent) keeps it",
		Why:     "metric.selector of an HPA; ignoring it adds the series of others",
		Run: func(e *Env) (string, error) {
			_, name := e.object()
			observed, err := e.customEmpty(name, "metricLabelSelector=conformance_absent%3Dx")
			if err != nil {
				return "", err
			}
			_, err = e.singleCustom(e.customObjectPath("v1beta2", name) + "?metricLabelSelector=%21conformance_absent")
			return "with =x " + observed + "; with ! the value", err
		},
	},
	{
		ID: "custom/root-object", Level: must, Needs: []need{customRoot},
		Promise: "the client gets the value of an object without a namespace, by name and in both versions",
		Why:     "HPAs read metrics of nodes and other cluster-wide objects so",
		Run:     (*Env).rootObject,
	},
	{
		ID: "custom/root-listed", Level: should, Needs: []need{customRoot},
		Promise: "its metric is listed as RESOURCE/METRIC with namespaced: false",
		Why:     "a client that follows the list would otherwise read it in a namespace",
		Run: func(e *Env) (string, error) {
			kind, _ := splitObject(e.customRootObject)
			return e.listsCustom(e.resourceOf(kind)+"/"+e.customRootName(), false)
		},
	},
	{
		ID: "custom/namespace-metric", Level: must, Needs: []need{customNamespace},
		Promise: "the client gets the metric of the namespace itself: namespaces/NS/metrics/METRIC, in both versions",
		Why:     "an HPA that describes a Namespace reads this path, unlike every other object",
		Run:     (*Env).namespaceMetric,
	},
	{
		ID: "custom/namespace-listed", Level: should, Needs: []need{customNamespace},
		Promise: "it is listed as namespaces/METRIC with namespaced: false",
		Why:     "the list is the only way to find out what can be read",
		Run: func(e *Env) (string, error) {
			return e.listsCustom("namespaces/"+e.customNamespaceMetric, false)
		},
	},
}

// selectedObjects reads `*` by the client and returns the names of the items, of which there must be one per object.
func (e *Env) selectedObjects(version, list string) ([]string, error) {
	client, err := e.customClient(version, "application/json")
	if err != nil {
		return nil, err
	}
	selector, err := labels.Parse(list)
	if err != nil {
		return nil, err
	}
	kind, _ := e.object()
	values, err := client.NamespacedMetrics(e.namespace).GetForObjects(kind, selector, e.customName(), labels.Everything())
	if err != nil {
		return nil, err
	}
	observed := map[string]bool{}
	for _, item := range values.Items {
		observed[item.DescribedObject.Name] = true
	}
	return sorted(observed), errorUnless(len(values.Items) > 0 && len(observed) == len(values.Items), "%d items of %d objects", len(values.Items), len(observed))
}

// singleCustom reads a list in JSON of v1beta2 that has exactly one item.
func (e *Env) singleCustom(path string) (*v1beta2.MetricValueList, error) {
	list := &v1beta2.MetricValueList{}
	answer, err := e.get(path)
	if err == nil {
		err = answer.json(list)
	}
	if err == nil && (list.Kind != "MetricValueList" || len(list.Items) != 1) {
		err = fmt.Errorf("expected one item: %s", answer)
	}
	return list, inCase(shortCustom(path), err)
}

// customEmpty reads the metric of an object, or of `*`, with this query, and expects no items or a 404 Status.
func (e *Env) customEmpty(name, query string) (string, error) {
	return e.customNothing(e.customObjectPath("v1beta2", name) + "?" + query)
}

// customNothing expects no items or a 404 Status under this path.
func (e *Env) customNothing(path string) (string, error) {
	answer, err := e.get(path)
	if err != nil {
		return "", err
	}
	if answer.Code != http.StatusOK {
		observed, err := answer.refused(http.StatusNotFound, metav1.StatusReasonNotFound)
		return observed, inCase(shortCustom(path), err)
	}
	list := v1beta2.MetricValueList{}
	if err := answer.json(&list); err != nil {
		return "", err
	}
	if len(list.Items) > 0 || list.Kind != "MetricValueList" {
		return "", inCase(shortCustom(path), fmt.Errorf("expected no items or a 404 Status: %s", answer))
	}
	return "200 with no items", nil
}
