package main

import (
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/version"
)

var healthPaths = []string{"/healthz", "/livez", "/readyz"}

var healthChecks = []Check{
	{
		ID: "health/anonymous", Level: should, Needs: []need{direct},
		Promise: "/healthz, /livez and /readyz answer `ok` in plain text to a caller without credentials",
		Why:     "the kubelet has none; a probe that needs one never makes the pod Ready",
		Run: func(e *Env) (string, error) {
			return "ok", forEach(healthPaths, func(path string) error {
				answer, err := e.get(path, withClient(e.clientWith(nil)), asIdentity(identity{}))
				if err == nil && (answer.Code != http.StatusOK || string(answer.Body) != "ok" || answer.contentType() != "text/plain") {
					err = fmt.Errorf("%s: %s", path, answer)
				}
				return err
			})
		},
	},
	{
		ID: "health/verbose", Level: should, Needs: []need{direct},
		Promise: "?verbose lists the checks as Kubernetes does: one line `[+]NAME ok` per check, and `PATH check passed` at the end",
		Why:     "people and tools read it to learn which part is not ready",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach(healthPaths, func(path string) error {
				answer, err := e.get(path+"?verbose", asIdentity(superuser))
				if err != nil {
					return err
				}
				observed = string(answer.Body)
				lines := strings.Split(strings.TrimSpace(string(answer.Body)), "\n")
				if answer.Code != http.StatusOK || len(lines) < 2 || !strings.HasPrefix(lines[0], "[+]") || lines[len(lines)-1] != strings.TrimPrefix(path, "/")+" check passed" {
					return fmt.Errorf("%s?verbose: %s", path, answer)
				}
				return nil
			})
			return observed, err
		},
	},
	{
		ID: "health/single", Level: should, Needs: []need{direct},
		Promise: "each check that ?verbose lists can be read alone, as /readyz/NAME",
		Why:     "a probe can then check a single component",
		Run:     (*Env).singleChecks,
	},
	{
		ID: "health/version", Level: should, Needs: []need{direct},
		Promise: "/version is a version.Info with a gitVersion",
		Why:     "people, support bundles",
		Run: func(e *Env) (string, error) {
			var info version.Info
			answer, err := e.get("/version", asIdentity(superuser))
			if err == nil {
				err = answer.json(&info)
			}
			if err == nil && info.GitVersion == "" {
				err = fmt.Errorf("no gitVersion: %s", answer)
			}
			return info.GitVersion, err
		},
	},
	{
		ID: "health/metrics-closed", Level: should, Needs: []need{direct},
		Promise: "/metrics rejects a caller without credentials",
		Why:     "it exposes names of namespaces and workloads",
		Run: func(e *Env) (string, error) {
			answer, err := e.get("/metrics", withClient(e.clientWith(nil)), asIdentity(identity{}))
			if err == nil && answer.Code/100 == 2 {
				err = fmt.Errorf("HTTP %d, %d bytes", answer.Code, len(answer.Body))
			}
			return fmt.Sprintf("HTTP %d", answer.code()), err
		},
	},
}

func (a *Answer) code() int {
	if a == nil {
		return 0
	}
	return a.Code
}

func (e *Env) singleChecks() (string, error) {
	answer, err := e.get("/readyz?verbose", asIdentity(superuser))
	if err != nil {
		return "", err
	}
	var names []string
	for line := range strings.Lines(string(answer.Body)) {
		if name, found := strings.CutPrefix(line, "[+]"); found {
			names = append(names, strings.Fields(name)[0])
		}
	}
	if len(names) == 0 {
		return "", skip("no checks are listed")
	}
	return strings.Join(names, ", "), forEach(names, func(name string) error {
		answer, err := e.get("/readyz/"+name, asIdentity(superuser))
		if err == nil && (answer.Code != http.StatusOK || string(answer.Body) != "ok") {
			err = fmt.Errorf("/readyz/%s: %s", name, answer)
		}
		return err
	})
}
