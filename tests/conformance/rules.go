package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
)

// How many labels of a metric's series selectors are made of, and how many of its objects are read by name.
const comparedLabels, comparedObjects = 4, 5

// What a server with the same rules answers like the one that it replaces.
var rulesChecks = []Check{
	{
		ID: "rules/external-listed", Level: must, Needs: []need{reference},
		Promise: "every external metric that the other server lists is listed here",
		Why:     "an HPA of a metric that is gone keeps its replicas, whatever the load",
		Run:     func(e *Env) (string, error) { return e.sameList(externalPath) },
	},
	{
		ID: "rules/external-values", Level: must, Needs: []need{reference},
		Promise: "each of them, without a selector, has the same series with the same labels and values",
		Why:     "the HPA adds the items up, so another label, item or value is another number of replicas",
		Run: func(e *Env) (string, error) {
			return e.compareExternal(func(string, string) ([]string, error) { return []string{""}, nil })
		},
	},
	{
		ID: "rules/external-selectors", Level: must, Needs: []need{reference},
		Promise: "so it is with selectors: every operator, on labels that the series have, that they lack, and on values that none has",
		Why:     "templates of rules put selectors into queries; one that means something else selects other series",
		Run:     func(e *Env) (string, error) { return e.compareExternal(e.selectorsOf) },
	},
	{
		ID: "rules/external-codes", Level: should, Needs: []need{reference},
		Promise: "unknown metrics, unknown namespaces and malformed selectors get the same code and reason",
		Why:     "alerts and scripts were written for them; an HPA keeps its replicas for each",
		Run: func(e *Env) (string, error) {
			names, _, err := e.referenceMetrics(externalPath)
			if err != nil {
				return "", err
			}
			parent := externalPath + "/namespaces/" + e.comparedNamespaces()[0] + "/"
			return e.compareCodes([]string{
				parent + unknownMetric, parent + escapePath(names[0]) + "?labelSelector=a%3Db%3Dc", parent + escapePath(names[0]) + "?labelSelector=a+in+%28%29",
				externalPath + "/namespaces/conformance-no-such-namespace/" + escapePath(names[0]), parent + escapePath(names[0]) + "/name",
			})
		},
	},
	{
		ID: "rules/custom-listed", Level: must, Needs: []need{reference},
		Promise: "every custom metric that the other server lists is listed here, as RESOURCE/METRIC with the same scope",
		Why:     "a rule makes one metric for each resource that its series have a label of",
		Run:     func(e *Env) (string, error) { return e.sameList(customPath("v1beta2")) },
	},
	{
		ID: "rules/custom-values", Level: must, Needs: []need{reference},
		Promise: "`*` of each of them has the same objects with the same values, and so has the metric of the namespace",
		Why:     "HPAs of type Pods read this",
		Run: func(e *Env) (string, error) {
			return e.compareCustom(func(path string) ([]string, error) { return []string{path}, nil })
		},
	},
	{
		ID: "rules/custom-objects", Level: must, Needs: []need{reference},
		Promise: "so has each object by its name, in both versions",
		Why:     "HPAs of type Object read this",
		Run:     func(e *Env) (string, error) { return e.compareCustom(e.objectsOf) },
	},
	{
		ID: "rules/custom-selectors", Level: must, Needs: []need{reference},
		Promise: "so has `*` with --custom-selector or a selector of no object, and with metricLabelSelectors, of which one is --selector",
		Why:     "templates of rules put selectors into queries; one that means something else selects other series",
		Run:     func(e *Env) (string, error) { return e.compareCustom(e.customSelectorsOf) },
	},
	{
		ID: "rules/custom-codes", Level: should, Needs: []need{reference},
		Promise: "unknown objects, metrics and namespaces, and malformed labelSelectors, get the same code and reason",
		Why:     "alerts and scripts were written for them; an HPA keeps its replicas for each",
		Run: func(e *Env) (string, error) {
			names, _, err := e.referenceMetrics(customPath("v1beta2"))
			if err != nil {
				return "", err
			}
			resource, metric, _ := strings.Cut(names[0], "/")
			for _, name := range names {
				if strings.HasPrefix(name, "pods/") {
					resource, metric, _ = strings.Cut(name, "/")
				}
			}
			parent := customPath("v1beta2") + "/namespaces/" + e.comparedNamespaces()[0] + "/" + resource + "/"
			return e.compareCodes([]string{
				parent + "conformance-no-such-object/" + metric, parent + "conformance-no-such-object/" + unknownMetric, parent + "*/" + unknownMetric,
				parent + "*/" + metric + "?labelSelector=a%3Db%3Dc", customPath("v1beta2") + "/namespaces/conformance-no-such-namespace/" + resource + "/x/" + metric,
			})
		},
	},
	{
		ID: "rules/resource-values", Level: must, Needs: []need{reference},
		Promise: "pods and nodes have the same usage of cpu and memory, with the same containers and window",
		Why:     "HPAs of type Resource and kubectl top read these",
		Run: func(e *Env) (string, error) {
			if _, err := e.reference.listed(resourcePath); err != nil {
				return "", err
			}
			paths := []string{resourcePath + "/nodes", resourcePath + "/pods"}
			for _, namespace := range e.comparedNamespaces() {
				paths = append(paths, resourcePath+"/namespaces/"+namespace+"/pods")
				if e.podSelector != "" {
					paths = append(paths, resourcePath+"/namespaces/"+namespace+"/pods?labelSelector="+escape(e.podSelector))
				}
			}
			return e.comparePaths(paths)
		},
	},
	{
		ID: "rules/resource-codes", Level: should, Needs: []need{reference},
		Promise: "unknown pods and nodes and malformed selectors get the same code and reason",
		Why:     "kubectl top and scripts show them",
		Run: func(e *Env) (string, error) {
			if _, err := e.reference.listed(resourcePath); err != nil {
				return "", err
			}
			parent := resourcePath + "/namespaces/" + e.comparedNamespaces()[0] + "/pods"
			return e.compareCodes([]string{parent + "/conformance-no-such-pod", resourcePath + "/nodes/conformance-no-such-node", parent + "?labelSelector=a%3Db%3Dc"})
		},
	},
}

func (e *Env) comparePaths(paths []string) (string, error) {
	count := &tally{}
	err := forEach(paths, func(path string) error { return e.sameAnswer(count, path) })
	return count.String(), err
}

// compareExternal compares each metric in each namespace with each selector of it.
func (e *Env) compareExternal(selectors func(namespace, metric string) ([]string, error)) (string, error) {
	names, _, err := e.referenceMetrics(externalPath)
	if err != nil {
		return "", err
	}
	var paths []string
	for _, namespace := range e.comparedNamespaces() {
		for _, metric := range names {
			chosen, err := selectors(namespace, metric)
			if err != nil {
				return "", err
			}
			for _, selector := range chosen {
				paths = append(paths, externalPath+"/namespaces/"+namespace+"/"+escapePath(metric)+"?labelSelector="+escape(selector))
			}
		}
	}
	observed, err := e.comparePaths(paths)
	return fmt.Sprintf("%d metrics: %s", len(names), observed), err
}

// selectorsOf makes selectors of the labels that the second server's answer shows.
func (e *Env) selectorsOf(namespace, metric string) ([]string, error) {
	selectors := []string{"conformance_absent=x", "!conformance_absent", "conformance_absent notin (x)", "app.kubernetes.io/name=x"}
	answer, err := e.reference.get(externalPath+"/namespaces/"+namespace+"/"+escapePath(metric), asIdentity(superuser))
	if err != nil || answer.Code != http.StatusOK {
		return selectors, err
	}
	list, err := answer.list()
	if err != nil {
		return nil, err
	}
	used := map[string]bool{}
	for _, item := range list.Items {
		for key, value := range item.MetricLabels {
			if len(validation.IsQualifiedName(key)) == 0 && len(validation.IsValidLabelValue(value)) == 0 && value != "" {
				used[key+"\n"+value] = true
			}
		}
	}
	pairs := sorted(used)
	// Spread over all labels, not the first of a metric with many series.
	for i := range min(comparedLabels, len(pairs)) {
		key, value, _ := strings.Cut(pairs[i*len(pairs)/min(comparedLabels, len(pairs))], "\n")
		for _, form := range []string{"%[1]s=%[2]s", "%[1]s!=%[2]s", "%[1]s in (%[2]s,conformance-x)", "%[1]s in (%[2]s)", "%[1]s notin (%[2]s)",
			"%[1]s notin (%[2]s,conformance-x)", "%[1]s", "!%[1]s", "%[1]s=conformance-no-such-value", "%[1]s=%[2]s,conformance_absent=x"} {
			selectors = append(selectors, strings.NewReplacer("%[1]s", key, "%[2]s", value).Replace(form))
		}
	}
	slices.Sort(selectors)
	return slices.Compact(selectors), nil
}

// compareCustom compares the paths that are made of `*` of each metric, in each namespace or without one.
func (e *Env) compareCustom(reads func(path string) ([]string, error)) (string, error) {
	names, entries, err := e.referenceMetrics(customPath("v1beta2"))
	if err != nil {
		return "", err
	}
	var all []string
	for _, name := range names {
		resource, metric, _ := strings.Cut(name, "/")
		switch {
		case resource == "namespaces":
			for _, namespace := range e.comparedNamespaces() {
				all = append(all, customPath("v1beta2")+"/namespaces/"+namespace+"/metrics/"+escapePath(metric))
			}
		case !entries[name].Namespaced:
			all = append(all, customPath("v1beta2")+"/"+resource+"/*/"+escapePath(metric))
		default:
			for _, namespace := range e.comparedNamespaces() {
				all = append(all, customPath("v1beta2")+"/namespaces/"+namespace+"/"+resource+"/*/"+escapePath(metric))
			}
		}
	}
	var paths []string
	for _, path := range all {
		more, err := reads(path)
		if err != nil {
			return "", err
		}
		paths = append(paths, more...)
	}
	observed, err := e.comparePaths(paths)
	return fmt.Sprintf("%d metrics: %s", len(names), observed), err
}

// objectsOf makes paths of single objects of what the second server answers for `*`.
func (e *Env) objectsOf(path string) ([]string, error) {
	older := strings.Replace(path, "/v1beta2/", "/v1beta1/", 1)
	if !strings.Contains(path, "/*/") {
		return []string{older}, nil
	}
	answer, err := e.reference.get(path, asIdentity(superuser))
	if err != nil || answer.Code != http.StatusOK {
		return nil, err
	}
	list := v1beta2.MetricValueList{}
	if err := answer.json(&list); err != nil {
		return nil, err
	}
	paths := []string{older, strings.Replace(path, "/*/", "/conformance-no-such-object/", 1)}
	for _, item := range list.Items[:min(comparedObjects, len(list.Items))] {
		for _, version := range []string{path, older} {
			paths = append(paths, strings.Replace(version, "/*/", "/"+item.DescribedObject.Name+"/", 1))
		}
	}
	return paths, nil
}

func (e *Env) customSelectorsOf(path string) ([]string, error) {
	var paths []string
	for _, selector := range []string{"conformance_absent=x", "!conformance_absent", "conformance_absent notin (x)", e.selector} {
		paths = append(paths, path+"?metricLabelSelector="+escape(selector))
	}
	if strings.Contains(path, "/*/") {
		for _, selector := range []string{"conformance-absent=x", "!conformance-absent", e.customList} {
			paths = append(paths, path+"?labelSelector="+escape(selector))
		}
	}
	return paths, nil
}
