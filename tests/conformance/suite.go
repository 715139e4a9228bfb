package main

import (
	"errors"
	"fmt"
	"time"
)

// Level says how bad a failure is.
type Level string

const (
	must   Level = "must"   // the contract of Kubernetes or a client breaks without it
	should Level = "should" // what a careful server does
)

// Check is one promise that a server is held to.
type Check struct {
	ID      string // stable: people put it into --run and into their lists of known failures
	Level   Level
	Promise string
	Why     string
	Needs   []need
	Run     func(*Env) (seen string, err error)
}

// A need says why a check cannot be run, or nothing.
type need func(*Env) string

func direct(e *Env) string {
	return unless(e.direct, "the API server stands in between; --server asks directly")
}

func proxied(e *Env) string { return unless(!e.direct, "needs --kubeconfig") }

func several(e *Env) string { return unless(e.multiSelector != "", "needs --multi-selector") }

func custom(e *Env) string { return unless(e.customObject != "", "needs --custom-object") }

func customSet(e *Env) string { return unless(e.customList != "", "needs --custom-selector") }

func bearer(e *Env) string { return unless(e.token != "", "needs --token") }

func clientCertificate(e *Env) string {
	return unless(e.clientCert != "" && e.clientKey != "", "needs --client-cert and --client-key")
}

func namespaceAllowed(e *Env) string {
	return unless(e.createNamespace, "creates a namespace: needs --create-namespace")
}

func unless(satisfied bool, reason string) string {
	if satisfied {
		return ""
	}
	return reason
}

// skip is an error that is no failure: the check has nothing to look at.
type skip string

func (s skip) Error() string { return string(s) }

// allChecks is the suite, in the order it is run: what everything rests on comes first.
func allChecks() []Check {
	var all []Check
	for _, part := range [][]Check{
		clusterChecks, discoveryChecks, aggregatedChecks, openAPIChecks, healthChecks, dataChecks, acceptChecks,
		selectorChecks, errorChecks, identityChecks, transportChecks, customChecks,
	} {
		all = append(all, part...)
	}
	return all
}

// Result is a check and what came of it.
type Result struct {
	ID      string `json:"id"`
	Level   Level  `json:"level"`
	Promise string `json:"promise"`
	Why     string `json:"why"`
	Outcome string `json:"outcome"` // ok, FAIL or skip
	Seen    string `json:"seen"`
}

// Report is a whole run.
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

// runAll runs checks one after the other and hands each result to `each` at once.
func runAll(env *Env, checks []Check, each func(Result)) Report {
	report := Report{Server: env.base, Mode: env.mode(), Metric: env.metric, Failing: []string{}}
	for _, check := range checks {
		result := runOne(env, check)
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
		each(result)
	}
	return report
}

func runOne(env *Env, check Check) (result Result) {
	result = Result{ID: check.ID, Level: check.Level, Promise: check.Promise, Why: check.Why, Outcome: "skip"}
	for _, need := range check.Needs {
		if result.Seen = need(env); result.Seen != "" {
			return result
		}
	}
	// A library that panics on an answer is a client that the server broke.
	defer func() {
		if cause := recover(); cause != nil {
			result.Outcome, result.Seen = "FAIL", fmt.Sprintf("the client library panicked: %v", cause)
		}
	}()
	seen, err := check.Run(env)
	var reason skip
	switch {
	case err == nil:
		result.Outcome, result.Seen = "ok", seen
	case errors.As(err, &reason):
		result.Seen = string(reason)
	default:
		result.Outcome, result.Seen = "FAIL", err.Error()
	}
	return result
}

// each runs one step for each case and collects everything that failed: one wrong case must not hide the next.
func each[T any](cases []T, step func(T) error) error {
	var failures []error
	for _, one := range cases {
		if err := step(one); err != nil {
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
