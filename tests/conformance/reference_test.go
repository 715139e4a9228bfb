package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAnswerMustLieBetweenTwoOfTheOtherServer(t *testing.T) {
	e := &Env{Options: Options{tolerance: 0.02}}
	values := func(pairs ...float64) outcome {
		o := outcome{code: 200, values: map[string]float64{}}
		for i, value := range pairs {
			o.values[fmt.Sprint(i)] = value
		}
		return o
	}
	failed := func(code int) outcome { return outcome{code: code} }
	for _, c := range []struct {
		before, here, after outcome
		same                bool
	}{
		{values(1, 2), values(1, 2), values(1, 2), true},
		{values(), values(), values(), true},
		{values(100), values(101), values(100), true},    // within 2 %
		{values(100), values(103), values(100), false},   // beyond them
		{values(100), values(140), values(150), true},    // between two reads of a growing value
		{values(0), values(0.0005), values(0), true},     // less than the unit of a Quantity
		{values(0), values(0.1), values(0), false},       // a share of nothing is nothing
		{values(-100), values(-101), values(-100), true}, // a share of a negative number
		{values(1), values(1, 2), values(1), false},      // a series more
		{values(1, 2), values(1), values(1, 2), false},   // a series less
		{values(1), failed(404), values(1), false},
		{failed(404), values(1), failed(404), false},
		{failed(404), failed(500), failed(404), true}, // codes are another check's
		{failed(404), values(), failed(404), false},
	} {
		if got := e.isBetween(c.before, c.here, c.after); got != c.same {
			t.Errorf("%s, %s, %s: same %v", c.before, c.here, c.after, got)
		}
	}
}

// rulesServer lists one metric of each group, all with this value, and answers only what exists.
func rulesServer(t *testing.T, value string) string {
	t.Helper()
	const external, custom, metrics = externalPath, "/apis/custom.metrics.k8s.io/v1beta2", resourcePath
	item := `{"metricName":"depth","metricLabels":{"queue":"a"},"timestamp":"2026-01-01T00:00:00Z","value":"` + value + `"}`
	object := `{"describedObject":{"kind":"Pod","namespace":"ns","name":"web-0","apiVersion":"v1"},"metric":{"name":"depth"},"timestamp":"2026-01-01T00:00:00Z","value":"` + value + `"}`
	pod := `{"metadata":{"name":"web-0","namespace":"ns"},"timestamp":"2026-01-01T00:00:00Z","window":"1m0s","containers":[{"name":"c","usage":{"cpu":"` + value + `","memory":"1Gi"}}]}`
	list := func(kind, items string) string {
		return `{"kind":"` + kind + `","apiVersion":"external.metrics.k8s.io/v1beta1","items":[` + items + `]}`
	}
	entries := func(name string) string {
		return `{"kind":"APIResourceList","resources":[{"name":"` + name + `","namespaced":true,"kind":"K","verbs":["get"]}]}`
	}
	answers := map[string]string{
		external: entries("depth"), custom: entries("pods/depth"), metrics: entries("pods"),
		external + "/namespaces/ns/depth": list("ExternalMetricValueList", item), metrics + "/nodes": list("NodeMetricsList", ""),
		metrics + "/pods": list("PodMetricsList", pod), metrics + "/namespaces/ns/pods": list("PodMetricsList", pod),
		custom + "/namespaces/ns/pods/*/depth": list("MetricValueList", object), custom + "/namespaces/ns/pods/web-0/depth": list("MetricValueList", object),
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, found := answers[strings.Replace(r.URL.Path, "/custom.metrics.k8s.io/v1beta1/", "/custom.metrics.k8s.io/v1beta2/", 1)]
		if !found || strings.Contains(r.URL.RawQuery, "Selector=conformance") {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"none","code":404}`
		}
		_, _ = io.WriteString(w, answer)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func TestComparesTwoServers(t *testing.T) {
	certificate, key := pair(t)
	report := func(here, there string) (passed int, failing []string) {
		env, err := newEnv(&Options{
			server: rulesServer(t, here), referenceServer: rulesServer(t, there), proxyCert: certificate, proxyKey: key, namespace: "ns", tolerance: 0.02,
		})
		if err != nil {
			t.Fatal(err)
		}
		env.pause = 0
		result := runAll(env, rulesChecks, func(r Result) {
			if there == here && r.Outcome != "ok" {
				t.Errorf("%s of two equal servers: %s %s", r.ID, r.Outcome, r.Observed)
			}
		})
		return result.Passed, result.Failing
	}
	if passed, _ := report("7", "7"); passed != len(rulesChecks) {
		t.Errorf("%d of %d checks pass for two equal servers", passed, len(rulesChecks))
	}
	_, failing := report("8", "7")
	want := "rules/external-values rules/external-selectors rules/custom-values rules/custom-objects rules/custom-selectors rules/resource-values"
	if strings.Join(failing, " ") != want {
		t.Errorf("with another value, these fail:\n%s\nexpected\n%s", strings.Join(failing, " "), want)
	}
}
