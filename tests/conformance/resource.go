package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	authorization "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/metrics/pkg/client/clientset/versioned"
	typed "k8s.io/metrics/pkg/client/clientset/versioned/typed/metrics/v1beta1"
)

const (
	resourceGroup   = "metrics.k8s.io"
	resourceVersion = "v1beta1"
	resourcePath    = "/apis/" + resourceGroup + "/" + resourceVersion
)

// What the HPA controller and kubectl top read.
var resourceChecks = []Check{
	{
		ID: "resource/available", Level: must, Needs: []need{proxied, podMetrics},
		Promise: "the APIService is Available",
		Why:     "until then, kube-apiserver itself answers every read with 503",
		Run: func(e *Env) (string, error) {
			return e.versionsAvailable(resourceGroup, []string{resourceVersion})
		},
	},
	{
		ID: "resource/hpa-may-read", Level: must, Needs: []need{proxied, podMetrics},
		Promise: "the HPA controller may list pods of " + resourceGroup,
		Why:     "kube-apiserver checks RBAC before it proxies",
		Run: func(e *Env) (string, error) {
			return e.mayBeRead(&authorization.ResourceAttributes{Namespace: e.namespace, Verb: "list", Group: resourceGroup, Version: resourceVersion, Resource: "pods"})
		},
	},
	{
		ID: "resource/resource-list", Level: must, Needs: []need{podMetrics},
		Promise: "the group's version lists pods (PodMetrics, namespaced) and nodes (NodeMetrics, not namespaced), with get and list and nothing else",
		Why:     "kubectl top looks for the group, REST mappers for the resources; with watch or delete, controllers of Kubernetes would use them",
		Run:     (*Env).resourceList,
	},
	{
		ID: "resource/client-protobuf", Level: must, Needs: []need{podMetrics},
		Promise: "the HPA's client (clientset of k8s.io/metrics, set to protobuf as in kube-controller-manager) lists the pods of the namespace, with the pod under test",
		Why:     "it is the client that scales by CPU and memory",
		Run:     func(e *Env) (string, error) { return e.podByClient(protobufType) },
	},
	{
		ID: "resource/client-json", Level: must, Needs: []need{podMetrics},
		Promise: "the same client set to JSON lists them",
		Why:     "kubectl top and tools use it this way",
		Run:     func(e *Env) (string, error) { return e.podByClient("application/json") },
	},
	{
		ID: "resource/get-pod", Level: must, Needs: []need{podMetrics},
		Promise: "the client gets the pod by its name, with the same containers as in the list",
		Why:     "kubectl top pod NAME, and the vertical autoscaler's tools",
		Run:     (*Env).getPod,
	},
	{
		ID: "resource/all-namespaces", Level: must, Needs: []need{podMetrics},
		Promise: "a list without a namespace has the pod, and every item has a name and a namespace, once",
		Why:     "kubectl top pods -A, and the vertical autoscaler",
		Run:     (*Env).allNamespaces,
	},
	{
		ID: "resource/usage", Level: must, Needs: []need{podMetrics},
		Promise: "every container has a name and a usage of cpu and memory, neither negative, and is listed once",
		Why:     "the HPA adds containers up and divides by their requests; a sum without a name counts twice",
		Run: func(e *Env) (string, error) {
			return e.eachPod(func(pod *v1beta1.PodMetrics) error {
				names := map[string]bool{}
				for _, container := range pod.Containers {
					if container.Name == "" || names[container.Name] {
						return fmt.Errorf("%s: container %q twice, or without a name", pod.Name, container.Name)
					}
					names[container.Name] = true
					if err := checkUsage(container.Usage); err != nil {
						return inCase(pod.Name+"/"+container.Name, err)
					}
				}
				return errorUnless(len(names) > 0, "%s has no containers", pod.Name)
			})
		},
	},
	{
		ID: "resource/containers", Level: must, Needs: []need{proxied, podMetrics},
		Promise: "the containers are those of the pod, without the sandbox's",
		Why:     "the HPA looks for each container of the pod by its name, and adds every one that is listed",
		Run:     (*Env).podContainers,
	},
	{
		ID: "resource/timestamp", Level: must, Needs: []need{podMetrics},
		Promise: "every item has a timestamp",
		Why:     "the HPA compares it with the start of the pod, to leave out what was measured while it started",
		Run: func(e *Env) (string, error) {
			return e.eachPod(func(pod *v1beta1.PodMetrics) error {
				return errorUnless(!pod.Timestamp.IsZero(), "%s has none", pod.Name)
			})
		},
	},
	{
		ID: "resource/timestamp-recent", Level: should, Needs: []need{podMetrics},
		Promise: "every timestamp is within the last five minutes and not in the future",
		Why:     "nobody checks it, and a usage from an hour ago scales like a current one",
		Run: func(e *Env) (string, error) {
			return e.eachPod(func(pod *v1beta1.PodMetrics) error {
				age := time.Since(pod.Timestamp.Time).Round(time.Second)
				return errorUnless(age > -5*time.Second && age < 5*time.Minute, "%s: %s old", pod.Name, age)
			})
		},
	},
	{
		ID: "resource/window", Level: must, Needs: []need{podMetrics},
		Promise: "every item has a window above zero and of at most one hour",
		Why:     "the HPA ignores the CPU of a pod until a whole window has passed since it became Ready",
		Run: func(e *Env) (string, error) {
			return e.eachPod(func(pod *v1beta1.PodMetrics) error {
				window := pod.Window.Duration
				return errorUnless(window > 0 && window <= time.Hour, "%s: %s", pod.Name, window)
			})
		},
	},
	{
		ID: "resource/selector", Level: must, Needs: []need{podMetrics, podSet},
		Promise: "a labelSelector selects pods by their labels: the pod under test is in it, and in none of its opposites",
		Why:     "the HPA lists by the selector of its scale target, and another workload's pods would be in the average",
		Run:     (*Env).resourceSelector,
	},
	{
		ID: "resource/selected-pods", Level: must, Needs: []need{proxied, podMetrics, podSet},
		Promise: "the selected items are pods that the selector selects in the cluster",
		Why:     "the same",
		Run:     (*Env).selectedPodMetrics,
	},
	{
		ID: "resource/labels", Level: should, Needs: []need{proxied, podMetrics},
		Promise: "an item has the labels of its pod",
		Why:     "clients group by them; they are those that the selector is about",
		Run:     (*Env).podLabels,
	},
	{
		ID: "resource/nodes", Level: must, Needs: []need{nodeMetrics},
		Promise: "the client gets the node by its name and in the list, with a usage of cpu and memory, a timestamp and a window",
		Why:     "kubectl top nodes; descheduler and dashboards",
		Run:     (*Env).nodeUsage,
	},
	{
		ID: "resource/nodes-selector", Level: should, Needs: []need{nodeMetrics},
		Promise: "a labelSelector that no node has gets an empty list of nodes",
		Why:     "kubectl top nodes -l",
		Run: func(e *Env) (string, error) {
			return e.emptyMetrics("/nodes?labelSelector=conformance-absent%3Dx", "NodeMetricsList")
		},
	},
}

func (e *Env) resourceClient(contentType string) (typed.MetricsV1beta1Interface, error) {
	config := rest.CopyConfig(e.config)
	config.ContentType = contentType
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.MetricsV1beta1(), nil
}

func (e *Env) resourceList() (string, error) {
	list := metav1.APIResourceList{}
	answer, err := e.get(resourcePath, accept("application/json"))
	if err == nil {
		err = answer.json(&list)
	}
	if err == nil && (list.Kind != "APIResourceList" || list.GroupVersion != resourceGroup+"/"+resourceVersion) {
		err = fmt.Errorf("%s", answer)
	}
	if err != nil {
		return "", err
	}
	expected := map[string]metav1.APIResource{"pods": {Kind: "PodMetrics", Namespaced: true}, "nodes": {Kind: "NodeMetrics"}}
	found := map[string]bool{}
	for _, resource := range list.APIResources {
		want, known := expected[resource.Name]
		verbs := map[string]bool{}
		for _, verb := range resource.Verbs {
			verbs[verb] = true
		}
		if !known || resource.Kind != want.Kind || resource.Namespaced != want.Namespaced || strings.Join(sorted(verbs), ",") != "get,list" {
			return "", fmt.Errorf("%s of kind %s, namespaced: %v, verbs %v", resource.Name, resource.Kind, resource.Namespaced, resource.Verbs)
		}
		found[resource.Name] = true
	}
	return "nodes, pods", errorUnless(len(found) == 2 && len(list.APIResources) == 2, "%d entries: %v", len(list.APIResources), sorted(found))
}

// podByClient lists the namespace as the HPA controller does, and returns what the pod uses.
func (e *Env) podByClient(contentType string) (string, error) {
	pods, err := e.listPods(e.namespace, "", contentType)
	if err != nil {
		return "", err
	}
	for i := range pods.Items {
		if pods.Items[i].Name == e.pod {
			return fmt.Sprintf("%d pods; %s", len(pods.Items), describePod(&pods.Items[i])), nil
		}
	}
	return "", fmt.Errorf("%s is not among %d pods", e.pod, len(pods.Items))
}

func (e *Env) listPods(namespace, selector, contentType string) (*v1beta1.PodMetricsList, error) {
	client, err := e.resourceClient(contentType)
	if err != nil {
		return nil, err
	}
	return client.PodMetricses(namespace).List(context.Background(), metav1.ListOptions{LabelSelector: selector})
}

func describePod(pod *v1beta1.PodMetrics) string {
	var containers []string
	for _, container := range pod.Containers {
		containers = append(containers, fmt.Sprintf("%s %s, %s", container.Name, container.Usage.Cpu(), container.Usage.Memory()))
	}
	return strings.Join(containers, "; ")
}

// checkUsage checks what a container or node uses.
func checkUsage(list core.ResourceList) error {
	for _, name := range []core.ResourceName{core.ResourceCPU, core.ResourceMemory} {
		quantity, found := list[name]
		if !found || quantity.Sign() < 0 {
			return fmt.Errorf("%s %q", name, quantity.String())
		}
	}
	return nil
}

// eachPod inspects every item of the namespace, of which there is at least the pod under test.
func (e *Env) eachPod(inspect func(*v1beta1.PodMetrics) error) (string, error) {
	pods, err := e.listPods(e.namespace, "", "application/json")
	if err != nil {
		return "", err
	}
	found := false
	err = forEach(pods.Items, func(pod v1beta1.PodMetrics) error {
		found = found || pod.Name == e.pod
		return inspect(&pod)
	})
	return fmt.Sprintf("%d pods", len(pods.Items)), orUnless(err, found, "%s is not among %d pods", e.pod, len(pods.Items))
}

// clusterPod is the pod under test as the cluster has it.
func (e *Env) clusterPod() (*core.Pod, error) {
	client, err := kubernetes.NewForConfig(e.config)
	if err != nil {
		return nil, err
	}
	return client.CoreV1().Pods(e.namespace).Get(context.Background(), e.pod, metav1.GetOptions{})
}
