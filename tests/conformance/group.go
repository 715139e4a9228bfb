package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// What the parts of custom and of resource metrics check alike, by path.

func escape(text string) string { return url.QueryEscape(text) }

func escapePath(text string) string { return url.PathEscape(text) }

// errorsAreStatuses sends requests that should fail. Whether they should have been refused is for other checks.
func (e *Env) errorsAreStatuses(requests []invalidRequest) (string, error) {
	observed := map[string]bool{}
	err := forEach(requests, func(request invalidRequest) error {
		answer, err := e.get(request.path, request.options...)
		if err != nil || answer.Code/100 == 2 {
			return err
		}
		status, err := answer.status()
		switch {
		case err != nil:
		case answer.Code == http.StatusUnauthorized:
			err = fmt.Errorf("%s", answer)
		case answer.Header.Get("Retry-After") != "":
			err = fmt.Errorf("HTTP %d with Retry-After: %s", answer.Code, answer.Header.Get("Retry-After"))
		default:
			observed[string(status.Reason)] = true
		}
		return inCase(request.name, err)
	})
	if err == nil && len(observed) == 0 {
		err = fmt.Errorf("none of %d wrong requests was refused", len(requests))
	}
	return strings.Join(sorted(observed), ", "), err
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
