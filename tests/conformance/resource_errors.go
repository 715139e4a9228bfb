package main

import (
	"encoding/json"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// How the answers are encoded, and what is not there, not allowed or wrong.
var resourceErrorChecks = []Check{
	{
		ID: "resource/shape", Level: must, Needs: []need{podMetrics},
		Promise: "the list is a PodMetricsList and the single pod PodMetrics, whose items have metadata, timestamp, window and containers",
		Why:     "these fields are required by the API; clients in other languages decode strictly",
		Run:     (*Env).resourceShape,
	},
	{
		ID: "resource/accept-hpa", Level: must, Needs: []need{podMetrics},
		Promise: "the HPA's `" + hpaAccept + "` gets protobuf or JSON, with the matching Content-Type",
		Why:     "the client decodes by the Content-Type of the answer, and fails for text/plain or none",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.podsPath(), accept(hpaAccept))
			if err != nil {
				return "", err
			}
			if answer.contentType() == protobufType {
				_, err = fromProtobuf[*v1beta1.PodMetricsList](answer)
				return protobufType, err
			}
			list := metav1.PartialObjectMetadataList{}
			err = answer.json(&list)
			return "JSON", orUnless(err, list.Kind == "PodMetricsList", "%s", answer)
		},
	},
	{
		ID: "resource/protobuf", Level: should, Needs: []need{podMetrics},
		Promise: "application/vnd.kubernetes.protobuf gets protobuf that Kubernetes' decoder reads",
		Why:     "the HPA prefers it, and it is cheaper in large clusters",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.podsPath(), accept(protobufType))
			if err != nil {
				return "", err
			}
			list, err := fromProtobuf[*v1beta1.PodMetricsList](answer)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%d pods, %d bytes", len(list.Items), len(answer.Body)), errorUnless(len(list.Items) > 0, "no items")
		},
	},
	{
		ID: "resource/accept-unknown", Level: should, Needs: []need{podMetrics},
		Promise: "an unsupported type gets 406 NotAcceptable",
		Why:     "a client that reads no other type must get an error",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.podsPath(), accept("application/xml"))
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable)
		},
	},
	{
		ID: "resource/unknown-pod", Level: must, Needs: []need{podMetrics},
		Promise: "a pod that does not exist gets a 404 Status",
		Why:     "kubectl top pod NAME tells a wrong name by it",
		Run: func(e *Env) (string, error) {
			return e.notFound("/namespaces/"+e.namespace+"/pods/conformance-no-such-pod", "/namespaces/conformance-no-such-namespace/pods/"+e.pod)
		},
	},
	{
		ID: "resource/unknown-node", Level: must, Needs: []need{nodeMetrics},
		Promise: "a node that does not exist gets a 404 Status",
		Why:     "kubectl top node NAME",
		Run:     func(e *Env) (string, error) { return e.notFound("/nodes/conformance-no-such-node") },
	},
	{
		ID: "resource/unknown-namespace", Level: must, Needs: []need{podMetrics},
		Promise: "a namespace that does not exist has an empty list",
		Why:     "lists of Kubernetes are empty there; an error looks like an outage",
		Run: func(e *Env) (string, error) {
			return e.emptyMetrics("/namespaces/conformance-no-such-namespace/pods", "PodMetricsList")
		},
	},
	{
		ID: "resource/malformed-closed", Level: must, Needs: []need{podMetrics},
		Promise: "a malformed labelSelector never returns items",
		Why:     "a selector that is ignored selects every pod of the namespace",
		Run: func(e *Env) (string, error) {
			return fmt.Sprintf("%d texts", len(malformed)), forEach(malformed, func(text string) error {
				answer, err := e.get(e.podsPath() + "?labelSelector=" + escape(text))
				return inCase(text, orUnless(err, answer != nil && answer.Code != http.StatusOK, "%s", answer))
			})
		},
	},
	{
		ID: "resource/malformed", Level: should, Needs: []need{podMetrics},
		Promise: "a malformed labelSelector, limit or fieldSelector gets 400 BadRequest",
		Why:     "every list in Kubernetes answers this",
		Run: func(e *Env) (string, error) {
			return "400", forEach([]string{"labelSelector=a%3Db%3Dc", "limit=x", "fieldSelector=spec.x%3D1"}, func(query string) error {
				answer, err := e.get(e.podsPath() + "?" + query)
				if err == nil {
					_, err = answer.refused(http.StatusBadRequest, metav1.StatusReasonBadRequest)
				}
				return inCase(query, err)
			})
		},
	},
	{
		ID: "resource/field-selector", Level: should, Needs: []need{podMetrics},
		Promise: "fieldSelector=metadata.name=POD selects that pod",
		Why:     "every list in Kubernetes can be read so; if it is ignored, more is selected than requested",
		Run: func(e *Env) (string, error) {
			list := v1beta1.PodMetricsList{}
			answer, err := e.get(e.podsPath() + "?fieldSelector=metadata.name%3D" + e.pod)
			if err == nil {
				err = answer.json(&list)
			}
			return "1 item", orUnless(err, len(list.Items) == 1 && list.Items[0].Name == e.pod, "%d items", len(list.Items))
		},
	},
	{
		ID: "resource/status", Level: must, Needs: []need{podMetrics},
		Promise: "every error is a Status in JSON whose code is the HTTP status, with a message, is no 401, and has no Retry-After",
		Why:     "users see the message; a 401 makes kube-controller-manager discard its token, Retry-After blocks its workers",
		Run:     func(e *Env) (string, error) { return e.privileged().errorsAreStatuses(e.invalidResource(), isHarmless) },
	},
	{
		ID: "resource/reason", Level: should, Needs: []need{podMetrics},
		Promise: "every error has a reason",
		Why:     "clients switch on it: without one, they cannot tell what does not exist from what failed",
		Run:     func(e *Env) (string, error) { return e.privileged().errorsAreStatuses(e.invalidResource(), hasReason) },
	},
	{
		ID: "resource/methods", Level: must, Needs: []need{podMetrics},
		Promise: "POST, PUT, PATCH and DELETE never succeed",
		Why:     "the namespace controller deletes everything that supports deletion",
		Run:     func(e *Env) (string, error) { return e.writesFail(e.podsPath(), e.podsPath()+"/"+e.pod, resourcePath) },
	},
	{
		ID: "resource/watch", Level: should, Needs: []need{podMetrics},
		Promise: "?watch=1 gets 405 MethodNotAllowed at once",
		Why:     "an informer must stop instead of waiting for events that never arrive",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.podsPath() + "?watch=1")
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
		},
	},
	{
		ID: "resource/forbidden", Level: must, Needs: []need{direct, podMetrics},
		Promise: "a user without rights gets 403 Forbidden, for the pod and for lists",
		Why:     "RBAC decides who may read; a 401 would make clients discard their token",
		Run: func(e *Env) (string, error) {
			return e.forbidden(e.podsPath(), e.podsPath()+"/"+e.pod, resourcePath+"/pods")
		},
	},
	{
		ID: "resource/no-credential", Level: must, Needs: []need{direct, podMetrics},
		Promise: "a caller without credentials, or with headers of a front proxy but not its certificate, gets nothing",
		Why:     "the port is open to every pod of the cluster",
		Run:     func(e *Env) (string, error) { return e.closedTo(e.podsPath()) },
	},
}

func (e *Env) podsPath() string { return resourcePath + "/namespaces/" + e.namespace + "/pods" }

func (e *Env) invalidResource() []invalidRequest {
	return []invalidRequest{
		{name: "unknown pod", path: e.podsPath() + "/conformance-no-such-pod"},
		{name: "unknown resource", path: resourcePath + "/namespaces/" + e.namespace + "/conformances"},
		{name: "malformed selector", path: e.podsPath() + "?labelSelector=a%3Db%3Dc"},
		{name: "watch", path: e.podsPath() + "?watch=1"},
		{name: "DELETE", path: e.podsPath() + "/" + e.pod, options: []requestOption{method(http.MethodDelete)}},
		{name: "unacceptable", path: e.podsPath(), options: []requestOption{accept("application/xml")}},
	}
}

func (e *Env) notFound(paths ...string) (string, error) {
	observed := ""
	err := forEach(paths, func(path string) error {
		answer, err := e.get(resourcePath+path, asIdentity(superuser))
		if err == nil {
			observed, err = answer.refused(http.StatusNotFound, metav1.StatusReasonNotFound)
		}
		return inCase(path, err)
	})
	return observed, err
}

// emptyMetrics expects an empty list of this kind, whose items are [] and not null.
func (e *Env) emptyMetrics(path, kind string) (string, error) {
	var list struct {
		Kind  string            `json:"kind"`
		Items []json.RawMessage `json:"items"`
	}
	answer, err := e.get(resourcePath+path, asIdentity(superuser))
	if err == nil {
		err = answer.json(&list)
	}
	return "no items", inCase(path, orUnless(err, list.Kind == kind && list.Items != nil && len(list.Items) == 0, "expected an empty %s: %s", kind, answer))
}

func (e *Env) resourceShape() (string, error) {
	type item = map[string]json.RawMessage
	var list struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
		Items      []item `json:"items"`
	}
	answer, err := e.get(e.podsPath())
	if err == nil {
		err = answer.json(&list)
	}
	if err != nil {
		return "", err
	}
	if list.Kind != "PodMetricsList" || list.APIVersion != resourceGroup+"/"+resourceVersion || len(list.Items) == 0 {
		return "", fmt.Errorf("%s", answer)
	}
	pod := item{}
	answer, err = e.get(e.podsPath()+"/"+e.pod, asIdentity(superuser))
	if err == nil {
		err = answer.json(&pod)
	}
	if err != nil {
		return "", err
	}
	if string(pod["kind"]) != `"PodMetrics"` {
		return "", fmt.Errorf("%s", answer)
	}
	return oneLine(string(answer.Body), 250), forEach(append(list.Items, pod), func(item item) error {
		for _, field := range []string{"metadata", "timestamp", "window", "containers"} {
			if _, found := item[field]; !found {
				return fmt.Errorf("an item without %s", field)
			}
		}
		return nil
	})
}
