package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What the parts of custom and of resource metrics check alike, by path.

func escape(text string) string { return url.QueryEscape(text) }

func escapePath(text string) string { return url.PathEscape(text) }

// errorsAreStatuses sends requests that should fail, and inspects the errors. Whether they should have been refused is for other checks.
func (e *Env) errorsAreStatuses(requests []invalidRequest, inspect func(*Answer, *metav1.Status) error) (string, error) {
	observed := map[string]bool{}
	err := forEach(requests, func(request invalidRequest) error {
		answer, err := e.get(request.path, request.options...)
		if err != nil || answer.Code/100 == 2 {
			return err
		}
		status, err := answer.status()
		if err == nil {
			observed[orText(string(status.Reason), "none")] = true
			err = inspect(answer, status)
		}
		return inCase(request.name, err)
	})
	if err == nil && len(observed) == 0 {
		err = fmt.Errorf("none of %d wrong requests was refused", len(requests))
	}
	return strings.Join(sorted(observed), ", "), err
}

func hasReason(answer *Answer, status *metav1.Status) error {
	return errorUnless(status.Reason != "", "%s", answer)
}

// isHarmless is what must hold of every error: a 401 makes kube-controller-manager discard its token, and Retry-After blocks its workers.
func isHarmless(answer *Answer, _ *metav1.Status) error {
	return errorUnless(answer.Code != http.StatusUnauthorized && answer.Header.Get("Retry-After") == "", "%s, Retry-After: %q", answer, answer.Header.Get("Retry-After"))
}

// writesFail sends every writing method to these paths.
func (e *Env) writesFail(paths ...string) (string, error) {
	return strings.Join(writes, ", "), forEach(writes, func(verb string) error {
		return forEach(paths, func(path string) error {
			answer, err := e.get(path, method(verb), withBody("{}"), asIdentity(superuser))
			return inCase(verb+" "+path, orUnless(err, answer != nil && answer.Code >= 400, "%s", answer))
		})
	})
}

// forbidden reads these paths as a user without rights.
func (e *Env) forbidden(paths ...string) (string, error) {
	return "403", forEach(paths, func(path string) error {
		answer, err := e.get(path, asIdentity(unprivileged))
		return inCase(path, orUnless(err, answer != nil && answer.Code == http.StatusForbidden, "%s", answer))
	})
}

// closedTo reads a path without credentials, and with the headers of a front proxy but no certificate.
func (e *Env) closedTo(path string) (string, error) {
	client := e.clientWith(nil)
	return "401, 403 or no connection", forEach([]identity{{}, superuser}, func(who identity) error {
		answer, err := e.get(path, withClient(client), asIdentity(who))
		if err != nil {
			return nil // refused before it could be sent; other checks have shown that the server is reachable
		}
		return errorUnless(answer.Code == http.StatusUnauthorized || answer.Code == http.StatusForbidden, "%s", answer)
	})
}
