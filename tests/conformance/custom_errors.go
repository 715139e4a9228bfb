package main

import (
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is not there, not allowed or wrong.
var customErrorChecks = []Check{
	{
		ID: "custom/unknown", Level: must, Needs: []need{custom},
		Promise: "an unknown object and an unknown metric get a 404 Status, or no items",
		Why:     "both keep the replicas and say why",
		Run: func(e *Env) (string, error) {
			kind, name := e.object()
			parent := customPath("v1beta2") + "/namespaces/" + e.namespace + "/" + e.resourceOf(kind)
			return "404 or no items", forEach([]string{
				parent + "/conformance-no-such-object/" + e.customName(), parent + "/" + name + "/" + unknownMetric, parent + "/*/" + unknownMetric,
			}, func(path string) error {
				_, err := e.customNothing(path)
				return err
			})
		},
	},
	{
		ID: "custom/unknown-resource", Level: must, Needs: []need{custom},
		Promise: "the same name of a resource that does not exist gets a 404 Status, or no items",
		Why:     "the object's kind may be gone from the cluster; a 5xx looks like an outage",
		Run: func(e *Env) (string, error) {
			_, name := e.object()
			return e.customNothing(customPath("v1beta2") + "/namespaces/" + e.namespace + "/conformances.wva.test/" + name + "/" + e.customName())
		},
	},
	{
		ID: "custom/other-namespace", Level: must, Needs: []need{custom},
		Promise: "in a namespace that does not exist, the object and `*` get a 404 Status, or no items",
		Why:     "an HPA must never scale on another tenant's number",
		Run: func(e *Env) (string, error) {
			_, name := e.object()
			return "404 or no items", forEach([]string{name, "*"}, func(name string) error {
				path := e.customObjectPath("v1beta2", name)
				_, err := e.customNothing(strings.Replace(path, "/namespaces/"+e.namespace+"/", "/namespaces/conformance-no-such-namespace/", 1))
				return err
			})
		},
	},
	{
		ID: "custom/wrong-scope", Level: should, Needs: []need{custom},
		Promise: "an object of a namespace, read without one, gets a 404 Status, or no items",
		Why:     "which namespace's would it be",
		Run: func(e *Env) (string, error) {
			_, name := e.object()
			return e.customNothing(strings.Replace(e.customObjectPath("v1beta2", name), "/namespaces/"+e.namespace+"/", "/", 1))
		},
	},
	{
		ID: "custom/malformed-closed", Level: must, Needs: []need{custom},
		Promise: "a malformed labelSelector or metricLabelSelector never returns items",
		Why:     "a selector that is ignored selects everything",
		Run: func(e *Env) (string, error) {
			return "refused", forEach(e.malformedCustom(), func(path string) error {
				answer, err := e.get(path)
				if err == nil && answer.Code == http.StatusOK {
					err = fmt.Errorf("%s", answer)
				}
				return inCase(shortCustom(path), err)
			})
		},
	},
	{
		ID: "custom/malformed", Level: should, Needs: []need{custom},
		Promise: "a malformed labelSelector or metricLabelSelector gets 400 BadRequest",
		Why:     "the HPA's condition then shows the error to the user",
		Run: func(e *Env) (string, error) {
			return "400", forEach(e.malformedCustom(), func(path string) error {
				answer, err := e.get(path)
				if err == nil {
					_, err = answer.refused(http.StatusBadRequest, metav1.StatusReasonBadRequest)
				}
				return inCase(shortCustom(path), err)
			})
		},
	},
	{
		ID: "custom/odd-names", Level: should, Needs: []need{custom},
		Promise: "metric names with a space, a colon, a question mark or non-ASCII letters are answered like any other, not with a 5xx",
		Why:     "the HPA's validation admits them",
		Run: func(e *Env) (string, error) {
			kind, name := e.object()
			return "404 or no items", forEach([]string{"a b", "a:b", "a?b", "é", "..."}, func(metric string) error {
				_, err := e.customNothing(customPath("v1beta2") + "/namespaces/" + e.namespace + "/" + e.resourceOf(kind) + "/" + name + "/" + escapePath(metric))
				return inCase(metric, err)
			})
		},
	},
	{
		ID: "custom/status", Level: must, Needs: []need{custom},
		Promise: "every error is a Status in JSON whose code is the HTTP status, with a message, is no 401, and has no Retry-After",
		Why:     "users see the message; a 401 makes kube-controller-manager discard its token, Retry-After blocks its workers",
		Run:     func(e *Env) (string, error) { return e.errorsAreStatuses(e.invalidCustom(), isHarmless) },
	},
	{
		ID: "custom/reason", Level: should, Needs: []need{custom},
		Promise: "every error has a reason",
		Why:     "clients switch on it: without one, they cannot tell what does not exist from what failed",
		Run:     func(e *Env) (string, error) { return e.errorsAreStatuses(e.invalidCustom(), hasReason) },
	},
	{
		ID: "custom/methods", Level: must, Needs: []need{custom},
		Promise: "POST, PUT, PATCH and DELETE never succeed",
		Why:     "the namespace controller deletes everything that supports deletion",
		Run:     func(e *Env) (string, error) { return e.writesFail(e.oneObjectPath("v1beta2"), customPath("v1beta2")) },
	},
	{
		ID: "custom/watch", Level: should, Needs: []need{custom},
		Promise: "?watch=1 gets 405 MethodNotAllowed at once",
		Why:     "an informer must stop instead of waiting for events that never arrive",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.customObjectPath("v1beta2", "*") + "?watch=1")
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
		},
	},
	{
		ID: "custom/forbidden", Level: must, Needs: []need{direct, custom},
		Promise: "a user without rights gets 403 Forbidden, for the object and for `*`",
		Why:     "RBAC decides who may read; a 401 would make clients discard their token",
		Run: func(e *Env) (string, error) {
			return e.forbidden(e.oneObjectPath("v1beta2"), e.customObjectPath("v1beta1", "*"))
		},
	},
	{
		ID: "custom/no-credential", Level: must, Needs: []need{direct, custom},
		Promise: "a caller without credentials, or with headers of a front proxy but not its certificate, does not get the value",
		Why:     "the port is open to every pod of the cluster",
		Run:     func(e *Env) (string, error) { return e.closedTo(e.oneObjectPath("v1beta2")) },
	},
}

func (e *Env) malformedCustom() []string {
	_, name := e.object()
	wrong := escape("a=b=c")
	return []string{
		e.customObjectPath("v1beta2", "*") + "?labelSelector=" + wrong, e.customObjectPath("v1beta2", name) + "?metricLabelSelector=" + wrong,
		e.customObjectPath("v1beta2", "*") + "?metricLabelSelector=" + wrong, e.customObjectPath("v1beta1", "*") + "?labelSelector=" + wrong,
	}
}

// invalidCustom has no malformed selectors, whose code and reason custom/malformed checks.
func (e *Env) invalidCustom() []invalidRequest {
	kind, name := e.object()
	value := e.oneObjectPath("v1beta2")
	parent := customPath("v1beta2") + "/namespaces/" + e.namespace + "/" + e.resourceOf(kind)
	return []invalidRequest{
		{name: "unknown metric", path: parent + "/" + name + "/" + unknownMetric},
		{name: "unknown object", path: parent + "/conformance-no-such-object/" + e.customName()},
		{name: "unknown namespace", path: strings.Replace(value, "/namespaces/"+e.namespace+"/", "/namespaces/conformance-no-such/", 1)},
		{name: "no metric", path: parent + "/" + name},
		{name: "DELETE", path: value, options: []requestOption{method(http.MethodDelete)}},
		{name: "unacceptable", path: value, options: []requestOption{accept("application/xml")}},
	}
}
