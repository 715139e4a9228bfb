package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Level is the severity of a failure.
type Level string

const (
	must   Level = "must"   // the contract of Kubernetes or a client breaks without it
	should Level = "should" // what a careful server does
)

// Check is one promise that a server must keep.
type Check struct {
	ID      string // stable, because users put it into --run and into lists of known failures
	Level   Level
	Promise string
	Why     string
	Needs   []need
	Run     func(*Env) (observed string, err error)
}

// A need returns why a check cannot run, or an empty string.
type need func(*Env) string

func direct(e *Env) string {
	return reasonUnless(e.direct, "the API server is in between; use --server for direct access")
}

func proxied(e *Env) string { return reasonUnless(!e.direct, "needs --kubeconfig") }

func external(e *Env) string { return reasonUnless(e.metric != "", "needs --metric") }

func several(e *Env) string { return reasonUnless(e.multiSelector != "", "needs --multi-selector") }

func custom(e *Env) string { return reasonUnless(e.customObject != "", "needs --custom-object") }

func customSet(e *Env) string { return reasonUnless(e.customList != "", "needs --custom-selector") }

func customRoot(e *Env) string {
	return reasonUnless(e.customRootObject != "", "needs --custom-root-object")
}

func customNamespace(e *Env) string {
	return reasonUnless(e.customNamespaceMetric != "", "needs --custom-namespace-metric")
}

func podMetrics(e *Env) string { return reasonUnless(e.pod != "", "needs --pod") }

func podSet(e *Env) string { return reasonUnless(e.podSelector != "", "needs --pod-selector") }

func nodeMetrics(e *Env) string { return reasonUnless(e.node != "", "needs --node") }

func reference(e *Env) string {
	return reasonUnless(e.reference != nil, "needs --reference-server or --reference-kubeconfig")
}

func bearer(e *Env) string { return reasonUnless(e.token != "", "needs --token") }

func clientCertificate(e *Env) string {
	return reasonUnless(e.clientCert != "" && e.clientKey != "", "needs --client-cert and --client-key")
}

func namespaceAllowed(e *Env) string {
	return reasonUnless(e.createNamespace, "creates a namespace: needs --create-namespace")
}

func reasonUnless(satisfied bool, reason string) string {
	if satisfied {
		return ""
	}
	return reason
}

// skip is an error that is not a failure: the check does not apply.
type skip string

func (s skip) Error() string { return string(s) }

// allChecks is the suite in the order of its run, with the most basic checks first.
func allChecks() []Check {
	var all []Check
	for _, part := range [][]Check{
		clusterChecks, discoveryChecks, aggregatedChecks, openAPIChecks, healthChecks, dataChecks, acceptChecks,
		selectorChecks, errorChecks, identityChecks, transportChecks,
	} {
		for _, check := range part {
			check.Needs = slices.Concat([]need{external}, check.Needs)
			all = append(all, check)
		}
	}
	return slices.Concat(all, customChecks, customAnswerChecks, customErrorChecks, resourceChecks, resourceErrorChecks, rulesChecks)
}

// Result is a check and its outcome.
type Result struct {
	ID       string `json:"id"`
	Level    Level  `json:"level"`
	Promise  string `json:"promise"`
	Why      string `json:"why"`
	Outcome  string `json:"outcome"` // ok, FAIL or skip
	Observed string `json:"seen"`
}

// Report is the result of a run.
type Report struct {
	Server  string   `json:"server"`
	Mode    string   `json:"mode"` // direct or aggregated
	Metric  string   `json:"metric"`
	Passed  int      `json:"passed"`
	Failed  int      `json:"failed"`
	Skipped int      `json:"skipped"`
	Failing []string `json:"failing"`
	Checks  []Result `json:"checks"`
}

// runAll runs checks one after the other and passes each result to onResult at once.
func runAll(env *Env, checks []Check, onResult func(Result)) Report {
	report := Report{Server: env.base, Mode: env.mode(), Metric: env.metric, Failing: []string{}}
	for _, check := range checks {
		result := runCheck(env, check)
		switch result.Outcome {
		case "ok":
			report.Passed++
		case "FAIL":
			report.Failed++
			report.Failing = append(report.Failing, result.ID)
		default:
			report.Skipped++
		}
		report.Checks = append(report.Checks, result)
		onResult(result)
	}
	return report
}

func runCheck(env *Env, check Check) (result Result) {
	result = Result{ID: check.ID, Level: check.Level, Promise: check.Promise, Why: check.Why, Outcome: "skip"}
	for _, need := range check.Needs {
		if result.Observed = need(env); result.Observed != "" {
			return result
		}
	}
	// If a client library panics on an answer, the server has broken a client.
	defer func() {
		if cause := recover(); cause != nil {
			result.Outcome, result.Observed = "FAIL", fmt.Sprintf("the client library panicked: %v", cause)
		}
	}()
	observed, err := check.Run(env)
	var reason skip
	switch {
	case err == nil:
		result.Outcome, result.Observed = "ok", observed
	case errors.As(err, &reason):
		result.Observed = string(reason)
	default:
		result.Outcome, result.Observed = "FAIL", err.Error()
	}
	return result
}

// forEach runs step for each case and collects all failures, so that one failure does not hide the next.
func forEach[T any](cases []T, step func(T) error) error {
	var failures []error
	for _, item := range cases {
		if err := step(item); err != nil {
			failures = append(failures, err)
		}
	}
	if len(failures) > 4 {
		failures = append(failures[:3:3], fmt.Errorf("and %d more", len(failures)-3))
	}
	return errors.Join(failures...)
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.0f ms", float64(d.Microseconds())/1000)
}
