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

// How long the availability controller waits for an answer.
const probePatience = 5 * time.Second

var discoveryChecks = []Check{
	{
		ID: "discovery/probe", Level: must, Needs: []need{direct},
		Promise: "five GETs of the group's version at once, bodies unread, each get a 2xx within 5 s",
		Why:     "that is the whole availability check of an APIService; while it fails, every read of the group is a 503",
		Run:     (*Env).probe,
	},
	{
		ID: "discovery/probe-quick", Level: should, Needs: []need{direct},
		Promise: "the group's version is answered within 1 s, 20 times in a row",
		Why:     "a document that is put together from a backend's answer takes the APIService down with the backend",
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
		Why:     "memory-cached clients fail with `received empty response`, and no REST mapper finds a metric; a placeholder is enough",
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
		Promise: "every entry has a name, a kind and verbs, is namespaced, and stands there once",
		Why:     "kubectl hides an entry without a kind, and clients panicked on one",
		Run:     (*Env).entries,
	},
	{
		ID: "discovery/verbs", Level: must,
		Promise: "no entry has a verb beyond get and list",
		Why:     "with list, watch and delete the garbage collector watches the resource for ever; with delete the namespace controller holds every namespace that has an item",
		Run:     (*Env).verbs,
	},
	{
		ID: "discovery/lower-case", Level: should,
		Promise: "the names are in lower case",
		Why:     "the HPA controller lower-cases the metric's name in its request: others cannot be reached",
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
		Why:     "legacy discovery of kube-apiserver sends no group: the server itself must add system:authenticated; else the group has no resources",
		Run: func(e *Env) (string, error) {
			return "200", each([]string{externalPath, "/apis"}, func(path string) error {
				answer, err := e.get(path, as(fallback), accept("application/json"))
				if err != nil || answer.Code/100 == 2 {
					return err
				}
				// From /apis kube-apiserver falls back on these; the group's own version is all that is left then.
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
		Why:     "people and direct clients follow it; kube-apiserver makes its own",
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
		Promise: "the group's version refuses a representation that it does not have with a 406",
		Why:     "a client that cannot read JSON must hear it, and not be sent JSON",
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
		Why:     "older clients, and all that go straight to a version",
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
		Promise: "client-go's discovery of everything succeeds, with no group failed",
		Why:     "every kubectl command and the namespace controller begin with it; a failed group stops namespace deletion",
		Run:     (*Env).clientGroups,
	},
	{
		ID: "discovery/client-cached", Level: must,
		Promise: "client-go's memory-cached discovery finds the version and a resource in it",
		Why:     "controllers and Helm use it; it takes an empty list for an error",
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

// probe does what the availability controller does: five at once, as itself, the bodies closed unread.
func (e *Env) probe() (string, error) {
	const attempts = 5
	client := e.clientWith(&e.pair)
	client.Timeout = probePatience
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
			prober.introduce(request.Header)
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
	return "all five within " + milliseconds(time.Since(began)), each(results[:], func(err error) error { return err })
}

func (e *Env) probeQuick() (string, error) {
	var longest time.Duration
	for range 20 {
		began := time.Now()
		answer, err := e.get(externalPath, as(prober))
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
	seen := map[string]bool{}
	return first(list), each(list.APIResources, func(r metav1.APIResource) error {
		switch {
		case r.Name == "" || r.Kind == "" || len(r.Verbs) == 0 || !r.Namespaced:
			entry, err := json.Marshal(r)
			return fmt.Errorf("%s %w", entry, err)
		case seen[r.Name]:
			return fmt.Errorf("%s stands there twice", r.Name)
		}
		seen[r.Name] = true
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
		// Another group that fails is not the fault of the server under test.
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
