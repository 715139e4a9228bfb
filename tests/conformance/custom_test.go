package main

import (
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

// customServer has the metric depth of the pod ns/web-0 with the label app=web, of the node n, and of the namespace ns itself, in JSON only.
// Its answers pass through `change`. It does not read the parameter `ignored`.
func customServer(t *testing.T, ignored string, change func(version, body string) string) string {
	t.Helper()
	item := func(version, kind, namespace, name, selector string) string {
		object := fmt.Sprintf(`"describedObject":{"kind":%q,"namespace":%q,"name":%q,"apiVersion":"v1"}`, kind, namespace, name)
		metric := `"metricName":"depth","window":30`
		if version == "v1beta2" {
			metric = `"metric":{"name":"depth","selector":` + selector + `},"windowSeconds":30`
		}
		return fmt.Sprintf(`{%s,%s,"timestamp":%q,"value":"7"}`, object, metric, time.Now().UTC().Format(time.RFC3339))
	}
	reply := func(r *http.Request, version, path string) (int, string) {
		query := r.URL.Query()
		selects := func(parameter string, set labels.Set) (bool, error) {
			if ignored == parameter {
				return true, nil
			}
			selector, err := labels.Parse(query.Get(parameter))
			return err == nil && selector.Matches(set), err
		}
		objects, wrong := selects("labelSelector", labels.Set{"app": "web"})
		series, wrongMetric := selects("metricLabelSelector", labels.Set{})
		named := "null"
		if query.Get("metricLabelSelector") == "!conformance_absent" {
			named = `{"matchExpressions":[{"key":"conformance_absent","operator":"DoesNotExist"}]}`
		}
		list := func(items string) string {
			return `{"kind":"MetricValueList","apiVersion":"custom.metrics.k8s.io/` + version + `","metadata":{},"items":[` + items + `]}`
		}
		switch {
		case r.Method != http.MethodGet || query.Get("watch") == "1":
			return 405, "MethodNotAllowed"
		case r.Header.Get("Accept") == "application/xml":
			return 406, "NotAcceptable"
		case wrong != nil || wrongMetric != nil:
			return 400, "BadRequest"
		case path == "":
			entry := `{"name":"%s/depth","namespaced":%v,"kind":"MetricValueList","verbs":["get"]}`
			return 200, `{"kind":"APIResourceList","groupVersion":"custom.metrics.k8s.io/` + version + `","resources":[` + fmt.Sprintf(entry, "pods", true) + "," +
				fmt.Sprintf(entry, "nodes", false) + "," + fmt.Sprintf(entry, "namespaces", false) + `]}`
		case path == "/namespaces/ns/pods/web-0/depth" && series:
			return 200, list(item(version, "Pod", "ns", "web-0", named))
		case path == "/namespaces/ns/pods/*/depth" && series && objects:
			return 200, list(item(version, "Pod", "ns", "web-0", named))
		case path == "/namespaces/ns/pods/*/depth":
			return 200, list("")
		case path == "/nodes/n/depth":
			return 200, list(item(version, "Node", "", "n", named))
		case path == "/namespaces/ns/metrics/depth":
			return 200, list(item(version, "Namespace", "", "ns", named))
		}
		return 404, "NotFound"
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/apis/custom.metrics.k8s.io/"), "/")
		if path != "" {
			path = "/" + path
		}
		code, body := reply(r, version, path)
		if r.Header.Get("X-Remote-User") == unprivileged.user {
			code, body = 403, "Forbidden"
		} else if len(r.TLS.PeerCertificates) == 0 {
			code, body = 401, "Unauthorized"
		}
		if code != 200 {
			body = fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":%q,"code":%d}`, body, code)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, change(version, body))
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = requestCertificates()
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func TestCustomChecksFindFaults(t *testing.T) {
	same := func(_, body string) string { return body }
	replaced := func(pairs ...string) func(string, string) string {
		return func(_, body string) string { return strings.NewReplacer(pairs...).Replace(body) }
	}
	certificate, key := pair(t)
	for name, c := range map[string]struct {
		ignored string
		change  func(version, body string) string
		fails   string
	}{
		"none":                     {"", same, ""},
		"another object":           {"", replaced(`"name":"web-0"`, `"name":"web-1"`), "custom/object custom/all"},
		"no kind":                  {"", replaced(`"kind":"Pod"`, `"kind":""`, `"kind":"Node"`, `"kind":""`), "custom/object custom/root-object"},
		"the version of an object": {"", replaced(`"apiVersion":"v1"}`, `"apiVersion":"/v1"}`), "custom/object-version"},
		"the name of v1beta1":      {"", replaced(`"metric":{"name":"depth"`, `"metricName":"depth","metric":{"name":""`), "custom/object custom/shape-v1beta2 custom/same-in-both"},
		"a window of v1beta1":      {"", replaced(`"windowSeconds":30`, `"windowSeconds":"30s"`), "custom/client-v1beta2 custom/window"},
		"a negative window":        {"", replaced(`"windowSeconds":30`, `"windowSeconds":-1`), "custom/window"},
		"a negative value":         {"", replaced(`"value":"7"`, `"value":"-7"`), "custom/quantity"},
		"a number as value":        {"", replaced(`"value":"7"`, `"value":7`), "custom/shape-v1beta1 custom/shape-v1beta2"},
		"objects not selected":     {"labelSelector", same, "custom/selects-none custom/malformed-closed custom/malformed"},
		"series not selected":      {"metricLabelSelector", same, "custom/metric-selector custom/malformed-closed"},
		"selectors not named":      {"", replaced(`"operator":"DoesNotExist"`, `"operator":"Exists"`), "custom/selector-named"},
		"entries without metrics":  {"", replaced(`"name":"pods/depth"`, `"name":"pods"`), "custom/entries custom/lists-metric"},
		"entries that watch":       {"", replaced(`"verbs":["get"]`, `"verbs":["get","watch"]`), "custom/resource-lists"},
		"scopes":                   {"", replaced(`"namespaced":true`, `"namespaced":false`, `"namespaced":false`, `"namespaced":true`), "custom/lists-metric custom/root-listed custom/namespace-listed"},
		"errors of no reason":      {"", replaced(`"reason":"NotFound"`, `"reason":""`), "custom/reason"},
		"errors as texts":          {"", replaced(`"kind":"Status"`, `"kind":""`), "custom/status custom/malformed custom/unknown"},
		"only v1beta2": {"", func(version, body string) string {
			if version == "v1beta1" {
				return "{}"
			}
			return body
		}, "custom/resource-lists custom/client-v1beta1 custom/shape-v1beta1 custom/same-in-both custom/root-object custom/namespace-metric custom/accept-hpa"},
	} {
		t.Run(name, func(t *testing.T) {
			env, err := newEnv(&Options{
				server: customServer(t, c.ignored, c.change), proxyCert: certificate, proxyKey: key, user: "somebody", namespace: "ns",
				customObject: "Pod/web-0", customMetric: "depth", customList: "app=web", customRootObject: "Node/n", customNamespaceMetric: "depth",
			})
			if err != nil {
				t.Fatal(err)
			}
			report := runAll(env, slices.Concat(customChecks, customAnswerChecks, customErrorChecks), func(Result) {})
			for _, id := range strings.Fields(c.fails) {
				if !slices.Contains(report.Failing, id) {
					t.Errorf("%s passes; failed: %v", id, report.Failing)
				}
			}
			if name == "none" && !slices.Equal(report.Failing, []string{"custom/protobuf", "custom/yaml"}) {
				t.Errorf("without a fault: %v", report.Failing)
			}
		})
	}
}
