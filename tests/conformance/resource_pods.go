package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// getPod reads as an administrator, since the HPA controller may only list.
func (e *Env) getPod() (string, error) {
	client, err := e.privileged().resourceClient(protobufType)
	if err != nil {
		return "", err
	}
	pod, err := client.PodMetricses(e.namespace).Get(context.Background(), e.pod, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	pods, err := e.listPods(e.namespace, "", protobufType)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(pods.Items, func(item v1beta1.PodMetrics) bool { return item.Name == e.pod })
	if i < 0 || pod.Name != e.pod || pod.Namespace != e.namespace {
		return "", fmt.Errorf("it gets %s/%s; the list has %d others", pod.Namespace, pod.Name, len(pods.Items))
	}
	alone, listed := containerNames(pod), containerNames(&pods.Items[i])
	return describePod(pod), errorUnless(maps.Equal(alone, listed), "alone %v, in the list %v", sorted(alone), sorted(listed))
}

func containerNames(pod *v1beta1.PodMetrics) map[string]bool {
	names := map[string]bool{}
	for _, container := range pod.Containers {
		names[container.Name] = true
	}
	return names
}

func (e *Env) allNamespaces() (string, error) {
	pods, err := e.listPods("", "", "application/json")
	if err != nil {
		return "", err
	}
	observed := map[string]bool{}
	for _, pod := range pods.Items {
		name := pod.Namespace + "/" + pod.Name
		if pod.Namespace == "" || pod.Name == "" || observed[name] {
			return "", fmt.Errorf("%q twice, or incomplete", name)
		}
		observed[name] = true
	}
	return fmt.Sprintf("%d pods", len(observed)), errorUnless(observed[e.namespace+"/"+e.pod], "%s is not among %d pods", e.pod, len(observed))
}

func (e *Env) podContainers() (string, error) {
	pod, err := e.clusterPod()
	if err != nil {
		return "", err
	}
	expected := map[string]bool{}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		expected[container.Name] = true
	}
	client, err := e.privileged().resourceClient(protobufType)
	if err != nil {
		return "", err
	}
	measured, err := client.PodMetricses(e.namespace).Get(context.Background(), e.pod, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	names := containerNames(measured)
	for name := range names {
		if !expected[name] {
			return "", fmt.Errorf("%q is no container of the pod; these are %v", name, sorted(expected))
		}
	}
	for _, container := range pod.Spec.Containers {
		if !names[container.Name] {
			return "", fmt.Errorf("container %s is missing; there are %v", container.Name, sorted(names))
		}
	}
	return strings.Join(sorted(names), ", "), nil
}

func (e *Env) podLabels() (string, error) {
	pod, err := e.clusterPod()
	if err != nil {
		return "", err
	}
	return e.eachPod(func(measured *v1beta1.PodMetrics) error {
		return errorUnless(measured.Name != e.pod || maps.Equal(measured.Labels, pod.Labels), "%v, the pod has %v", measured.Labels, pod.Labels)
	})
}

func (e *Env) resourceSelector() (string, error) {
	has := func(selector string) (bool, error) {
		pods, err := e.listPods(e.namespace, selector, "application/json")
		if err != nil {
			return false, inCase(selector, err)
		}
		return slices.ContainsFunc(pods.Items, func(pod v1beta1.PodMetrics) bool { return pod.Name == e.pod }), nil
	}
	check := func(want bool) func(string) error {
		return func(selector string) error {
			found, err := has(selector)
			return orUnless(err, found == want, "%q: selected %v, expected %v", selector, found, want)
		}
	}
	if err := forEach([]string{e.podSelector, e.podSelector + ",!conformance-absent", e.podSelector + ",conformance-absent notin (x)"}, check(true)); err != nil {
		return "", err
	}
	if err := forEach([]string{e.podSelector + ",conformance-absent", e.podSelector + ",conformance-absent in (x)"}, check(false)); err != nil {
		return "", err
	}
	return e.emptyMetrics("/namespaces/"+e.namespace+"/pods?labelSelector=conformance-absent%3Dx", "PodMetricsList")
}

func (e *Env) selectedPodMetrics() (string, error) {
	client, err := kubernetes.NewForConfig(e.config)
	if err != nil {
		return "", err
	}
	selected, err := client.CoreV1().Pods(e.namespace).List(context.Background(), metav1.ListOptions{LabelSelector: e.podSelector})
	if err != nil {
		return "", err
	}
	names := map[string]bool{}
	for _, pod := range selected.Items {
		names[pod.Name] = true
	}
	measured, err := e.listPods(e.namespace, e.podSelector, protobufType)
	if err != nil {
		return "", err
	}
	err = forEach(measured.Items, func(pod v1beta1.PodMetrics) error {
		return errorUnless(names[pod.Name], "%s is not selected by %s", pod.Name, e.podSelector)
	})
	return fmt.Sprintf("%d of %d pods", len(measured.Items), len(names)), orUnless(err, len(measured.Items) > 0, "no items")
}

func (e *Env) nodeUsage() (string, error) {
	client, err := e.privileged().resourceClient(protobufType)
	if err != nil {
		return "", err
	}
	node, err := client.NodeMetricses().Get(context.Background(), e.node, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	nodes, err := client.NodeMetricses().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	listed := slices.ContainsFunc(nodes.Items, func(item v1beta1.NodeMetrics) bool { return item.Name == e.node })
	if node.Name != e.node || !listed {
		return "", fmt.Errorf("it gets %q; in the list of %d: %v", node.Name, len(nodes.Items), listed)
	}
	err = checkUsage(node.Usage)
	return fmt.Sprintf("%s, %s", node.Usage.Cpu(), node.Usage.Memory()),
		orUnless(err, !node.Timestamp.IsZero() && node.Window.Duration > 0, "timestamp %s, window %s", node.Timestamp, node.Window.Duration)
}
