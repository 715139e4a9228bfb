package main

import (
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const unknownMetric = "conformance-no-such-metric"

var errorChecks = []Check{
	{
		ID: "errors/unknown-metric", Level: must,
		Promise: "an unknown metric returns an error as a Status, or an empty list, and never a value",
		Why:     "both keep the replicas and say why; a 0 would scale to the minimum",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.dataPath(unknownMetric, ""))
			if err != nil {
				return "", err
			}
			return answer.noItems()
		},
	},
	{
		ID: "errors/unknown-metric-code", Level: should,
		Promise: "that error is a 404",
		Why:     "a 5xx looks like an outage, and alerts count it as one",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.dataPath(unknownMetric, ""))
			if err != nil {
				return "", err
			}
			return answer.emptyOrNotFound()
		},
	},
	{
		ID: "errors/unknown-value", Level: must,
		Promise: "a selector that no series matches returns a 404 Status or an empty list",
		Why:     "items would be another workload's number",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.and("conformance_absent=x"))
			if err != nil {
				return "", err
			}
			return answer.emptyOrNotFound()
		},
	},
	{
		ID: "errors/status", Level: must,
		Promise: "every error is a Status in JSON whose code is the HTTP status, with a message",
		Why:     "users see the message; the HPA shows nothing of a plain-text error",
		Run: func(e *Env) (string, error) {
			return e.errorsAreStatuses(e.invalidRequests(), func(*Answer, *metav1.Status) error { return nil })
		},
	},
	{
		ID: "errors/reason", Level: should,
		Promise: "every error has a reason",
		Why:     "clients switch on it: without one, they cannot tell what does not exist from what failed",
		Run:     func(e *Env) (string, error) { return e.errorsAreStatuses(e.invalidRequests(), hasReason) },
	},
	{
		ID: "errors/no-retry-after", Level: should,
		Promise: "no answer about a metric has Retry-After, whether it succeeds or fails",
		Why:     "client-go obeys it: ten more requests, and one of the HPA controller's five workers blocked for 10 s at each sync",
		Run: func(e *Env) (string, error) {
			cases := append(e.invalidRequests(), invalidRequest{name: "the value", path: e.dataPath(e.metric, e.selector)})
			return fmt.Sprintf("%d answers", len(cases)), forEach(cases, func(request invalidRequest) error {
				answer, err := e.get(request.path, request.options...)
				if err == nil && answer.Header.Get("Retry-After") != "" {
					err = fmt.Errorf("HTTP %d with Retry-After: %s", answer.Code, answer.Header.Get("Retry-After"))
				}
				return inCase(request.name, err)
			})
		},
	},
	{
		ID: "errors/not-unauthorized", Level: must,
		Promise: "no error answer is a 401",
		Why:     "on a 401 kube-controller-manager discards its token, so every HPA's identity changes at each sync",
		Run: func(e *Env) (string, error) {
			return "none", forEach(e.invalidRequests(), func(request invalidRequest) error {
				answer, err := e.get(request.path, request.options...)
				if err == nil && answer.Code == http.StatusUnauthorized {
					err = fmt.Errorf("%s", answer)
				}
				return inCase(request.name, err)
			})
		},
	},
	{
		ID: "errors/method-closed", Level: must,
		Promise: "POST, PUT, PATCH and DELETE never succeed",
		Why:     "the namespace controller deletes everything that supports deletion",
		Run: func(e *Env) (string, error) {
			return strings.Join(writes, ", "), forEach(writes, func(verb string) error {
				return forEach([]string{e.dataPath(e.metric, e.selector), externalPath}, func(path string) error {
					answer, err := e.get(path, method(verb), withBody("{}"))
					if err == nil && answer.Code < 400 {
						err = fmt.Errorf("%s %s: %s", verb, short(path), answer)
					}
					return err
				})
			})
		},
	},
	{
		ID: "errors/method", Level: should,
		Promise: "POST, PUT, PATCH and DELETE of a metric get 405 MethodNotAllowed",
		Why:     "any other answer suggests that a retry could succeed",
		Run: func(e *Env) (string, error) {
			return "405 to " + strings.Join(writes, ", "), forEach(writes, func(verb string) error {
				// As a superuser, because a 403 says nothing about the method.
				answer, err := e.get(e.dataPath(e.metric, e.selector), method(verb), withBody("{}"), asIdentity(superuser))
				if err == nil {
					_, err = answer.refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
				}
				return inCase(verb, err)
			})
		},
	},
	{
		ID: "errors/watch", Level: should,
		Promise: "?watch=1 gets 405 MethodNotAllowed at once",
		Why:     "an informer must stop instead of waiting for events that never arrive",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(with(e.dataPath(e.metric, e.selector), "watch=1"))
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
		},
	},
	{
		ID: "errors/paths", Level: should,
		Promise: "no metric, a named object, a further segment, cluster scope and an unknown version get 404 NotFound",
		Why:     "kubectl get METRIC NAME sends such a path; a value under a wrong path would be used",
		Run: func(e *Env) (string, error) {
			metric := e.dataPath(e.metric, "")
			paths := []string{externalPath + "/namespaces/" + e.namespace, metric + "/name", metric + "/a/b", externalPath + "/" + e.metric}
			if e.direct { // kube-apiserver answers for versions that are not registered
				paths = append(paths, strings.Replace(metric, "/v1beta1/", "/v1alpha9/", 1))
			}
			return "404", forEach(paths, func(path string) error {
				answer, err := e.get(path)
				if err == nil {
					_, err = answer.refused(http.StatusNotFound, metav1.StatusReasonNotFound)
				}
				return inCase(short(path), err)
			})
		},
	},
	{
		ID: "errors/odd-names", Level: should,
		Promise: "metric names with a space, a colon, a question mark or non-ASCII letters are answered like any other, not with a 5xx",
		Why:     "the HPA's validation admits them",
		Run: func(e *Env) (string, error) {
			return "404 or an empty list", forEach([]string{"a b", "a:b", "a?b", "é", "..."}, func(name string) error {
				answer, err := e.get(e.dataPath(name, ""))
				if err == nil {
					_, err = answer.emptyOrNotFound()
				}
				return inCase(name, err)
			})
		},
	},
	{
		ID: "errors/limit", Level: should,
		Promise: "limit=x gets 400 BadRequest",
		Why:     "every list in Kubernetes answers this",
		Run:     func(e *Env) (string, error) { return e.badRequest("limit=x") },
	},
	{
		ID: "errors/field-selector", Level: should,
		Promise: "a fieldSelector on an unknown field gets 400 BadRequest",
		Why:     "if it is ignored, more is selected than requested",
		Run:     func(e *Env) (string, error) { return e.badRequest("fieldSelector=spec.x%3D1") },
	},
	{
		ID: "errors/outside", Level: should, Needs: []need{direct},
		Promise: "a path outside the API gets a 404",
		Why:     "scanners and tools probe for features",
		Run: func(e *Env) (string, error) {
			answer, err := e.get("/conformance-no-such-path", asIdentity(prober))
			if err == nil && answer.Code != http.StatusNotFound {
				err = fmt.Errorf("%s", answer)
			}
			return "404", err
		},
	},
}

var writes = []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// An invalidRequest should be rejected.
type invalidRequest struct {
	name, path string
	options    []requestOption
}

func (e *Env) invalidRequests() []invalidRequest {
	value := e.dataPath(e.metric, e.selector)
	return []invalidRequest{
		{name: "unknown metric", path: e.dataPath(unknownMetric, "")},
		{name: "no such series", path: e.dataPath(e.metric, e.and("conformance_absent=x"))},
		{name: "unknown namespace", path: strings.Replace(value, "/namespaces/"+e.namespace+"/", "/namespaces/conformance-no-such/", 1)},
		{name: "malformed selector", path: e.dataPath(e.metric, "a=b=c")},
		{name: "bad selector value", path: e.dataPath(e.metric, "model=meta-llama/Llama-3.1-8B")},
		{name: "watch", path: with(value, "watch=1")},
		{name: "limit", path: with(value, "limit=x")},
		{name: "DELETE", path: value, options: []requestOption{method(http.MethodDelete)}},
		{name: "POST", path: value, options: []requestOption{method(http.MethodPost), withBody("{}")}},
		{name: "named object", path: e.dataPath(e.metric, "") + "/name"},
		{name: "no metric", path: externalPath + "/namespaces/" + e.namespace},
		{name: "unacceptable", path: value, options: []requestOption{accept("application/xml")}},
	}
}

// with adds a parameter to a path's query.
func with(path, parameter string) string {
	if strings.Contains(path, "?") {
		return path + "&" + parameter
	}
	return path + "?" + parameter
}

func (e *Env) badRequest(parameter string) (string, error) {
	answer, err := e.get(with(e.dataPath(e.metric, e.selector), parameter))
	if err != nil {
		return "", err
	}
	return answer.refused(http.StatusBadRequest, metav1.StatusReasonBadRequest)
}
