package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// A fault changes what the server of the tests answers.
type fault struct {
	pod      func(pod map[string]any)
	answer   func(path, body string) string
	ignores  string // a parameter that it does not read
	unknown  int    // the code for what does not exist
	discover string // the discovery document
}

const podDiscovery = `{"kind":"APIResourceList","groupVersion":"metrics.k8s.io/v1beta1","resources":[
	{"name":"nodes","namespaced":false,"kind":"NodeMetrics","verbs":["get","list"]},{"name":"pods","namespaced":true,"kind":"PodMetrics","verbs":["get","list"]}]}`

// resourceServer has the pod ns/web-0 with the label app=web, and the node n, and no protobuf.
func resourceServer(t *testing.T, f fault) string {
	t.Helper()
	now := time.Now().UTC().Format(time.RFC3339)
	usage := map[string]any{"cpu": "10m", "memory": "1Mi"}
	pod := map[string]any{
		"kind": "PodMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "timestamp": now, "window": "30s",
		"metadata":   map[string]any{"name": "web-0", "namespace": "ns", "labels": map[string]any{"app": "web"}},
		"containers": []any{map[string]any{"name": "web", "usage": usage}},
	}
	if f.pod != nil {
		f.pod(pod)
	}
	node := map[string]any{"kind": "NodeMetrics", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": map[string]any{"name": "n"}, "timestamp": now, "window": "30s", "usage": usage}
	list := func(kind string, items ...any) string {
		text, _ := json.Marshal(map[string]any{"kind": kind, "apiVersion": "metrics.k8s.io/v1beta1", "items": append([]any{}, items...)})
		return string(text)
	}
	one := func(object any) string { text, _ := json.Marshal(object); return string(text) }
	reply := func(r *http.Request) (int, string) {
		query := r.URL.Query()
		selector, err := labels.Parse(query.Get("labelSelector"))
		if err != nil && f.ignores != "labelSelector" || query.Get("limit") == "x" || strings.Contains(query.Get("fieldSelector"), "spec.") {
			return 400, "BadRequest"
		}
		isSelected := func(set labels.Set) bool { return f.ignores == "labelSelector" || selector.Matches(set) }
		switch path := strings.TrimPrefix(r.URL.Path, resourcePath); {
		case r.Method != http.MethodGet || query.Get("watch") == "1":
			return 405, "MethodNotAllowed"
		case r.Header.Get("Accept") == "application/xml":
			return 406, "NotAcceptable"
		case path == "":
			return 200, orText(f.discover, podDiscovery)
		case path == "/namespaces/ns/pods/web-0":
			return 200, one(pod)
		case path == "/nodes/n":
			return 200, one(node)
		case path == "/nodes" && isSelected(nil):
			return 200, list("NodeMetricsList", node)
		case path == "/nodes":
			return 200, list("NodeMetricsList")
		case (path == "/pods" || path == "/namespaces/ns/pods") && isSelected(labels.Set{"app": "web"}):
			return 200, list("PodMetricsList", pod)
		case strings.HasSuffix(path, "/pods"):
			return 200, list("PodMetricsList")
		}
		return 404, "NotFound"
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, body := reply(r)
		switch who := r.Header.Get("X-Remote-User"); {
		case who == unprivileged.user:
			code, body = 403, "Forbidden"
		case len(r.TLS.PeerCertificates) == 0:
			code, body = 401, "Unauthorized"
		}
		if code == 404 && f.unknown != 0 {
			code = f.unknown
		}
		if code != 200 {
			body = fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":%q,"code":%d}`, body, code)
		}
		if f.answer != nil {
			body = f.answer(r.URL.Path, body)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = requestCertificates()
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func TestResourceChecksFindFaults(t *testing.T) {
	replaced := func(old, with string) fault {
		return fault{answer: func(_, body string) string { return strings.ReplaceAll(body, old, with) }}
	}
	set := func(key string, value any) fault { return fault{pod: func(pod map[string]any) { pod[key] = value }} }
	certificate, key := pair(t)
	for name, c := range map[string]struct {
		fault fault
		fails []string
	}{
		"none":                {fault{}, nil},
		"no window":           {set("window", "0s"), []string{"resource/window"}},
		"an old timestamp":    {set("timestamp", "2020-01-01T00:00:00Z"), []string{"resource/timestamp-recent"}},
		"no timestamp":        {set("timestamp", nil), []string{"resource/timestamp", "resource/timestamp-recent"}},
		"no containers":       {set("containers", []any{}), []string{"resource/usage"}},
		"no memory":           {replaced(`,"memory":"1Mi"`, ""), []string{"resource/usage", "resource/nodes"}},
		"negative":            {replaced(`"10m"`, `"-10m"`), []string{"resource/usage", "resource/nodes"}},
		"a sum as container":  {set("containers", []any{map[string]any{"name": "", "usage": map[string]any{"cpu": "1", "memory": "1"}}}), []string{"resource/usage"}},
		"null for no items":   {replaced(`"items":[]`, `"items":null`), []string{"resource/selector", "resource/nodes-selector", "resource/unknown-namespace"}},
		"another kind":        {replaced("PodMetricsList", "List"), []string{"resource/client-protobuf", "resource/shape"}},
		"selectors ignored":   {fault{ignores: "labelSelector"}, []string{"resource/selector", "resource/nodes-selector", "resource/malformed-closed", "resource/malformed"}},
		"unknown is an error": {fault{unknown: 500}, []string{"resource/unknown-pod", "resource/unknown-node"}},
		"writable":            {fault{discover: strings.Replace(podDiscovery, `"list"]`, `"list","delete"]`, 1)}, []string{"resource/resource-list"}},
		"errors as texts":     {replaced(`"kind":"Status"`, `"kind":""`), []string{"resource/status"}},
		"errors of no reason": {replaced(`"reason":"NotFound"`, `"reason":""`), []string{"resource/reason", "resource/unknown-pod"}},
	} {
		t.Run(name, func(t *testing.T) {
			env, err := newEnv(&Options{
				server: resourceServer(t, c.fault), proxyCert: certificate, proxyKey: key, user: "somebody", namespace: "ns", pod: "web-0", podSelector: "app=web", node: "n",
			})
			if err != nil {
				t.Fatal(err)
			}
			report := runAll(env, slices.Concat(resourceChecks, resourceErrorChecks), func(Result) {})
			for _, id := range c.fails {
				if !slices.Contains(report.Failing, id) {
					t.Errorf("%s passes; failed: %v", id, report.Failing)
				}
			}
			// The server has no protobuf and selects no fields.
			if name == "none" && !slices.Equal(report.Failing, []string{"resource/protobuf"}) {
				t.Errorf("without a fault: %v", report.Failing)
			}
		})
	}
}
