package main

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	"encoding/json"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/restmapper"
)

// The representations of /apis that kube-apiserver's discovery manager requests.
const (
	discoveryV2      = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	discoveryV2beta1 = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
	managerAccept    = discoveryV2 + "," + discoveryV2beta1
)

var aggregatedChecks = []Check{
	{
		ID: "aggregated/understood", Level: must, Needs: []need{direct},
		Promise: "/apis answers kube-apiserver's discovery manager with an aggregated document, or with an answer that makes it fall back: never a 503 or an unreadable body",
		Why:     "on a 503 or invalid JSON the group becomes Stale, and namespace deletion stops in the whole cluster while the APIService stays Available",
		Run:     (*Env).aggregatedOrFallback,
	},
	{
		ID: "aggregated/v2", Level: should,
		Promise: "/apis serves aggregated discovery v2 with its exact Content-Type",
		Why:     "one request instead of one per version; the discovery manager compares the type",
		Run:     func(e *Env) (string, error) { return e.aggregatedAs(discoveryV2, "v2") },
	},
	{
		ID: "aggregated/v2beta1", Level: should, Needs: []need{direct},
		Promise: "/apis serves aggregated discovery v2beta1",
		Why:     "kube-apiserver before 1.30 supports no other version",
		Run:     func(e *Env) (string, error) { return e.aggregatedAs(discoveryV2beta1, "v2beta1") },
	},
	{
		ID: "aggregated/own-group", Level: should,
		Promise: "if the server serves an aggregated document, it lists the group with the same resources as legacy discovery",
		Why:     "current clients read only this document: kubectl and REST mappers do not find metrics that it omits",
		Run:     (*Env).ownGroup,
	},
	{
		ID: "aggregated/entries", Level: must,
		Promise: "every resource in it has a responseKind with a kind, a scope and verbs",
		Why:     "kubectl hides an entry without a kind; client-go 0.26.0 to 0.26.3 panicked on it",
		Run:     (*Env).aggregatedEntries,
	},
	{
		ID: "aggregated/etag", Level: should, Needs: []need{direct},
		Promise: "it has an ETag, and a request with this ETag gets a 304 without a body",
		Why:     "every kube-apiserver requests it once per minute",
		Run:     (*Env).etag,
	},
	{
		ID: "aggregated/etag-each", Level: should, Needs: []need{direct},
		Promise: "the versions of the document have different ETags",
		Why:     "a cache that changes versions would otherwise keep a body that it cannot read",
		Run:     (*Env).etagEach,
	},
	{
		ID: "aggregated/client", Level: must,
		Promise: "client-go with aggregated discovery reads /apis",
		Why:     "it is the first request of every client since 1.27",
		Run: func(e *Env) (string, error) {
			client, err := discovery.NewDiscoveryClientForConfig(e.config)
			if err != nil {
				return "", err
			}
			groups, _, failed, err := client.GroupsAndMaybeResources()
			if err == nil && failed[externalGV] != nil {
				err = failed[externalGV]
			}
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%d groups", len(groups.Groups)), nil
		},
	},
	{
		ID: "aggregated/rest-mapper", Level: should,
		Promise: "client-go's REST mapper maps the metric under test",
		Why:     "kubectl get and dynamic clients look a resource up in it",
		Run: func(e *Env) (string, error) {
			client, err := discovery.NewDiscoveryClientForConfig(e.config)
			if err != nil {
				return "", err
			}
			resources, err := restmapper.GetAPIGroupResources(client)
			if err != nil {
				return "", err
			}
			kind, err := restmapper.NewDiscoveryRESTMapper(resources).KindFor(externalGV.WithResource(e.metric))
			return kind.String(), err
		},
	},
}

// aggregated reads an aggregated document; v2beta1 has the same fields. It skips if the server has none.
func (e *Env) aggregated(types string) (*apidiscovery.APIGroupDiscoveryList, *Answer, error) {
	answer, err := e.get("/apis", accept(types), asIdentity(prober))
	if err != nil {
		return nil, nil, err
	}
	if answer.Code != http.StatusOK || !isAggregated(answer) {
		return nil, answer, skip("the server has no aggregated discovery: " + answer.String())
	}
	list := &apidiscovery.APIGroupDiscoveryList{}
	if err := json.Unmarshal(answer.Body, list); err != nil {
		return nil, answer, fmt.Errorf("the document cannot be read: %w", err)
	}
	return list, answer, nil
}

func isAggregated(answer *Answer) bool {
	kind, parameters, err := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	return err == nil && kind == "application/json" && parameters["g"] == "apidiscovery.k8s.io" && parameters["as"] == "APIGroupDiscoveryList"
}

func (e *Env) aggregatedOrFallback() (string, error) {
	answer, err := e.get("/apis", accept(managerAccept), asIdentity(prober))
	if err != nil {
		return "", err
	}
	switch {
	case answer.Code == http.StatusServiceUnavailable || answer.Code == 401 || answer.Code == 403 || answer.Code == 429:
		return "", fmt.Errorf("%s", answer)
	case !isAggregated(answer) || answer.Code != http.StatusOK:
		return "falls back to legacy discovery on " + answer.String(), nil
	}
	list, _, err := e.aggregated(managerAccept)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s with %d groups", list.APIVersion, len(list.Items)), nil
}

func (e *Env) aggregatedAs(types, version string) (string, error) {
	list, answer, err := e.aggregated(types)
	if err != nil {
		if _, absent := err.(skip); absent {
			err = fmt.Errorf("%s", answer)
		}
		return "", err
	}
	_, parameters, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if parameters["v"] != version || list.Kind != "APIGroupDiscoveryList" || list.APIVersion != "apidiscovery.k8s.io/"+version {
		return "", fmt.Errorf("%s %s as %s", list.APIVersion, list.Kind, answer.Header.Get("Content-Type"))
	}
	return fmt.Sprintf("%s, %d groups", answer.Header.Get("Content-Type"), len(list.Items)), nil
}

// ownVersion is the entry of external.metrics.k8s.io/v1beta1 in an aggregated document.
func ownVersion(list *apidiscovery.APIGroupDiscoveryList) *apidiscovery.APIVersionDiscovery {
	for _, group := range list.Items {
		for i, version := range group.Versions {
			if group.Name == externalGroup && version.Version == externalVersion {
				return &group.Versions[i]
			}
		}
	}
	return nil
}

func (e *Env) ownGroup() (string, error) {
	list, _, err := e.aggregated(managerAccept)
	if err != nil {
		return "", err
	}
	version := ownVersion(list)
	if version == nil {
		return "", fmt.Errorf("%s is not in it; it has %d groups", externalGV, len(list.Items))
	}
	legacy, err := e.resources()
	if err != nil {
		return "", err
	}
	var here, there []string
	for _, resource := range version.Resources {
		here = append(here, resource.Resource)
	}
	for _, resource := range legacy.APIResources {
		there = append(there, resource.Name)
	}
	slices.Sort(here)
	slices.Sort(there)
	if !slices.Equal(here, there) {
		return "", fmt.Errorf("aggregated: %s; legacy: %s", strings.Join(here, ", "), strings.Join(there, ", "))
	}
	return fmt.Sprintf("%d resources in both, %s", len(here), version.Freshness), nil
}

func (e *Env) aggregatedEntries() (string, error) {
	list, _, err := e.aggregated(managerAccept)
	if err != nil {
		return "", err
	}
	version := ownVersion(list)
	if version == nil {
		return "", skip("the group is not in the document")
	}
	// kube-apiserver builds a responseKind without group and version from legacy discovery, so these are not checked.
	return fmt.Sprintf("%d resources", len(version.Resources)), forEach(version.Resources, func(r apidiscovery.APIResourceDiscovery) error {
		if r.Resource == "" || r.ResponseKind == nil || r.ResponseKind.Kind == "" || r.Scope != apidiscovery.ScopeNamespace || len(r.Verbs) == 0 {
			entry, err := json.Marshal(r)
			return fmt.Errorf("%s %w", entry, err)
		}
		return nil
	})
}

func (e *Env) etag() (string, error) {
	_, answer, err := e.aggregated(managerAccept)
	if err != nil {
		return "", err
	}
	tag := answer.Header.Get("ETag")
	if !strings.HasPrefix(tag, `"`) || !strings.HasSuffix(tag, `"`) || len(tag) < 3 {
		return "", fmt.Errorf("ETag %q", tag)
	}
	again, err := e.get("/apis", accept(managerAccept), asIdentity(prober), header("If-None-Match", tag))
	if err == nil && (again.Code != http.StatusNotModified || len(again.Body) > 0) {
		err = fmt.Errorf("If-None-Match: %s", again)
	}
	return "304 to " + oneLine(tag, 20), err
}

func (e *Env) etagEach() (string, error) {
	_, v2, err := e.aggregated(discoveryV2)
	if err != nil {
		return "", err
	}
	_, v2beta1, err := e.aggregated(discoveryV2beta1)
	if err != nil {
		return "", err
	}
	tag := v2.Header.Get("ETag")
	if tag == "" || tag == v2beta1.Header.Get("ETag") {
		return "", fmt.Errorf("v2 and v2beta1 have the same ETag %q", oneLine(tag, 20))
	}
	other, err := e.get("/apis", accept(discoveryV2beta1), asIdentity(prober), header("If-None-Match", tag))
	if err == nil && other.Code != http.StatusOK {
		err = fmt.Errorf("v2beta1 with the ETag of v2: %s", other)
	}
	return "different", err
}
