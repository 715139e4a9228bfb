package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
)

// The time-out of the availability controller.
const probeTimeout = 5 * time.Second

var discoveryChecks = []Check{
	{
		ID: "discovery/probe", Level: must, Needs: []need{direct},
		Promise: "five concurrent GETs of the group's version each get a 2xx within 5 s, with bodies unread",
		Why:     "this is the availability check of an APIService; while it fails, every read of the group is a 503",
		Run:     (*Env).probe,
	},
	{
		ID: "discovery/probe-quick", Level: should, Needs: []need{direct},
		Promise: "the group's version is answered within 1 s, 20 times in a row",
		Why:     "if the document depends on a backend, the APIService becomes unavailable with the backend",
		Run:     (*Env).probeQuick,
	},
	{
		ID: "discovery/resource-list", Level: must,
		Promise: "the group's version is an APIResourceList of v1 in JSON that names this version",
		Why:     "kubectl, the garbage collector and the namespace controller read it",
		Run: func(e *Env) (string, error) {
			list, err := e.resources()
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%d resources", len(list.APIResources)), nil
		},
	},
	{
		ID: "discovery/not-empty", Level: must,
		Promise: "it lists at least one resource",
		Why:     "memory-cached clients fail with `received empty response`, and no REST mapper finds a metric; a placeholder suffices",
		Run: func(e *Env) (string, error) {
			list, err := e.resources()
			if err == nil && len(list.APIResources) == 0 {
				err = fmt.Errorf("the list is empty")
			}
			return first(list), err
		},
	},
	{
		ID: "discovery/entries", Level: must,
		Promise: "every entry has a name, a kind and verbs, is namespaced, and is listed once",
		Why:     "kubectl hides an entry without a kind, and clients panicked on one",
		Run:     (*Env).entries,
	},
	{
		ID: "discovery/verbs", Level: must,
		Promise: "no entry has verbs other than get and list",
		Why:     "with list, watch and delete, the garbage collector watches the resource for ever; with delete, the namespace controller blocks every namespace that has an item",
		Run:     (*Env).verbs,
	},
	{
		ID: "discovery/lower-case", Level: should,
		Promise: "the names are in lower case",
		Why:     "the HPA controller lower-cases the metric's name in its request, so other names cannot be reached",
		Run: func(e *Env) (string, error) {
			list, err := e.resources()
			for _, resource := range list.APIResources {
				if resource.Name != strings.ToLower(resource.Name) {
					return "", fmt.Errorf("%s", resource.Name)
				}
			}
			return first(list), err
		},
	},
	{
		ID: "discovery/lists-metric", Level: should,
		Promise: "the metric under test is one of the entries",
		Why:     "without it `kubectl get METRIC.external.metrics.k8s.io` does not work and `kubectl auth can-i` warns",
		Run: func(e *Env) (string, error) {
			list, err := e.resources()
			for _, resource := range list.APIResources {
				if resource.Name == e.metric {
					return resource.Name + ", " + resource.Kind, nil
				}
			}
			if err == nil {
				err = fmt.Errorf("%s is not among %d entries, %s", e.metric, len(list.APIResources), first(list))
			}
			return "", err
		},
	},
	{
		ID: "discovery/without-group", Level: must, Needs: []need{direct},
		Promise: "system:kube-aggregator without any group may read the group's version and /apis",
		Why:     "legacy discovery of kube-apiserver sends no group, so the server must add system:authenticated; otherwise the group has no resources",
		Run: func(e *Env) (string, error) {
			return "200", forEach([]string{externalPath, "/apis"}, func(path string) error {
				answer, err := e.get(path, asIdentity(fallback), accept("application/json"))
				if err != nil || answer.Code/100 == 2 {
					return err
				}
				// On these codes from /apis, kube-apiserver falls back to legacy discovery of the group's version.
				if path == "/apis" && (answer.Code == 404 || answer.Code == 406 || answer.Code == 500) {
					return nil
				}
				return fmt.Errorf("%s: %s", path, answer)
			})
		},
	},
	{
		ID: "discovery/group", Level: should, Needs: []need{direct},
		Promise: "/apis/" + externalGroup + " is the APIGroup",
		Why:     "people and direct clients follow it; kube-apiserver builds its own",
		Run: func(e *Env) (string, error) {
			group := metav1.APIGroup{}
			answer, err := e.get("/apis/"+externalGroup, accept("application/json"))
			if err == nil {
				err = answer.json(&group)
			}
			if err == nil && (group.Kind != "APIGroup" || group.Name != externalGroup || !servesExternal(group)) {
				err = fmt.Errorf("%s", answer)
			}
			return group.PreferredVersion.GroupVersion, err
		},
	},
	{
		ID: "discovery/group-list", Level: should,
		Promise: "/apis as plain application/json is an APIGroupList with the group",
		Why:     "legacy clients start there",
		Run: func(e *Env) (string, error) {
			list := metav1.APIGroupList{}
			answer, err := e.get("/apis", accept("application/json"))
			if err == nil {
				err = answer.json(&list)
			}
			if err == nil && (list.Kind != "APIGroupList" || !slices.ContainsFunc(list.Groups, servesExternal)) {
				err = fmt.Errorf("%s", answer)
			}
			return fmt.Sprintf("%d groups", len(list.Groups)), err
		},
	},
	{
		ID: "discovery/wrong-type", Level: should,
		Promise: "the group's version answers 406 for a representation that it does not have",
		Why:     "a client that cannot read JSON must get an error, not JSON",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(externalPath, accept("application/xml"))
			if err == nil && answer.Code != http.StatusNotAcceptable {
				err = fmt.Errorf("%s", answer)
			}
			return "406", err
		},
	},
	{
		ID: "discovery/client-legacy", Level: must,
		Promise: "client-go reads the version by legacy discovery",
		Why:     "older clients and clients that read a version directly use it",
		Run: func(e *Env) (string, error) {
			client, err := discovery.NewDiscoveryClientForConfig(e.config)
			if err != nil {
				return "", err
			}
			list, err := client.WithLegacy().ServerResourcesForGroupVersion(externalGV.String())
			return first(list), err
		},
	},
	{
		ID: "discovery/client-groups", Level: must,
		Promise: "client-go's discovery of all groups succeeds without a failed group",
		Why:     "every kubectl command and the namespace controller start with it; a failed group blocks namespace deletion",
		Run:     (*Env).clientGroups,
	},
	{
		ID: "discovery/client-cached", Level: must,
		Promise: "client-go's memory-cached discovery finds the version and a resource in it",
		Why:     "controllers and Helm use it; it treats an empty list as an error",
		Run: func(e *Env) (string, error) {
			client, err := discovery.NewDiscoveryClientForConfig(e.config)
			if err != nil {
				return "", err
			}
			list, err := memory.NewMemCacheClient(client.WithLegacy()).ServerResourcesForGroupVersion(externalGV.String())
			if err == nil && len(list.APIResources) == 0 {
				err = fmt.Errorf("no resource")
			}
			return first(list), err
		},
	},
}

func (e *Env) resources() (*metav1.APIResourceList, error) {
	list := &metav1.APIResourceList{}
	answer, err := e.get(externalPath, accept("application/json"))
	if err == nil {
		err = answer.json(list)
	}
	if err == nil && (list.Kind != "APIResourceList" || list.APIVersion != "" && list.APIVersion != "v1" || list.GroupVersion != externalGV.String()) {
		err = fmt.Errorf("%s", answer)
	}
	return list, err
}

func first(list *metav1.APIResourceList) string {
	if list == nil || len(list.APIResources) == 0 {
		return "none"
	}
	return fmt.Sprintf("first of %d: %s", len(list.APIResources), list.APIResources[0].Name)
}

func servesExternal(group metav1.APIGroup) bool {
	return group.Name == externalGroup && slices.ContainsFunc(group.Versions, func(v metav1.GroupVersionForDiscovery) bool {
		return v.GroupVersion == externalGV.String()
	})
}

// probe acts as the availability controller: five requests at once with its identity, and the bodies closed unread.
func (e *Env) probe() (string, error) {
	const attempts = 5
	client := e.clientWith(&e.pair)
	client.Timeout = probeTimeout
	defer client.CloseIdleConnections()
	var (
		wait    sync.WaitGroup
		began   = time.Now()
		results [attempts]error
	)
	for i := range attempts {
		wait.Go(func() {
			request, err := http.NewRequest(http.MethodGet, e.base+externalPath, nil)
			if err != nil {
				results[i] = err
				return
			}
			prober.addHeaders(request.Header)
			response, err := client.Do(request)
			if err != nil {
				results[i] = err
				return
			}
			response.Body.Close()
			if response.StatusCode/100 != 2 {
				results[i] = fmt.Errorf("HTTP %d", response.StatusCode)
			}
		})
	}
	wait.Wait()
	return "all five within " + milliseconds(time.Since(began)), forEach(results[:], func(err error) error { return err })
}

func (e *Env) probeQuick() (string, error) {
	var longest time.Duration
	for range 20 {
		began := time.Now()
		answer, err := e.get(externalPath, asIdentity(prober))
		if err != nil {
			return "", err
		}
		if answer.Code/100 != 2 {
			return "", fmt.Errorf("%s", answer)
		}
		longest = max(longest, time.Since(began))
	}
	if longest > time.Second {
		return "", fmt.Errorf("the longest took %s", milliseconds(longest))
	}
	return "the longest took " + milliseconds(longest), nil
}

func (e *Env) entries() (string, error) {
	list, err := e.resources()
	if err != nil {
		return "", err
	}
	observed := map[string]bool{}
	return first(list), forEach(list.APIResources, func(r metav1.APIResource) error {
		switch {
		case r.Name == "" || r.Kind == "" || len(r.Verbs) == 0 || !r.Namespaced:
			entry, err := json.Marshal(r)
			return fmt.Errorf("%s %w", entry, err)
		case observed[r.Name]:
			return fmt.Errorf("%s is listed twice", r.Name)
		}
		observed[r.Name] = true
		return nil
	})
}

func (e *Env) verbs() (string, error) {
	list, err := e.resources()
	if err != nil {
		return "", err
	}
	found := map[string]bool{}
	for _, resource := range list.APIResources {
		for _, verb := range resource.Verbs {
			found[verb] = true
			if verb != "get" && verb != "list" {
				return "", fmt.Errorf("%s has %v", resource.Name, resource.Verbs)
			}
		}
	}
	return strings.Join(sorted(found), ", "), nil
}

func (e *Env) clientGroups() (string, error) {
	client, err := discovery.NewDiscoveryClientForConfig(e.config)
	if err != nil {
		return "", err
	}
	groups, lists, err := client.ServerGroupsAndResources()
	if failed, some := discovery.GroupDiscoveryFailedErrorGroups(err); some {
		// A failure of another group is not caused by the server under test.
		if cause, ours := failed[externalGV]; ours {
			return "", cause
		}
	} else if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d groups, %d versions with resources", len(groups), len(lists)), nil
}

func sorted(set map[string]bool) []string {
	var keys []string
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
