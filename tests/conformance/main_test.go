package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// The suite's own lists must match the grammar.
func TestSelectorListsAreCorrect(t *testing.T) {
	for _, text := range malformed {
		if _, err := labels.Parse(text); err == nil {
			t.Errorf("%q is a selector", text)
		}
	}
	for _, text := range slices.Concat(hpaForms, otherForms, qualifiedKeys) {
		selector, err := labels.Parse(text)
		if err != nil || !selector.Matches(labels.Set{"variant": "x"}) {
			t.Errorf("%q: %v, or it deselects a series without the label", text, err)
		}
	}
}

func TestEveryCheckHasUniqueIDAndReason(t *testing.T) {
	observed := map[string]bool{}
	form := regexp.MustCompile(`^[a-z]+/[a-z0-9-]+$`)
	for _, check := range allChecks() {
		if observed[check.ID] || !form.MatchString(check.ID) {
			t.Errorf("ID %q", check.ID)
		}
		observed[check.ID] = true
		if check.Promise == "" || check.Why == "" || check.Run == nil || check.Level != must && check.Level != should {
			t.Errorf("%s is incomplete", check.ID)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for arguments, want := range map[string]int{
		"--help": 0, "--list": 0, "--list --run ^no-such": 2, "--run (": 2, "--no-such-flag": 2, "": 2, "--metric m": 2, "surplus": 2,
		"--metric m --kubeconfig a --server b": 2, "--metric m --server https://127.0.0.1:1 --proxy-cert /none --proxy-key /none": 2,
		"--metric m --server ftp://x --proxy-cert a --proxy-key b": 2,
		"--server https://x --proxy-cert a --proxy-key b":          2, "--kubeconfig a --custom-object Pod --custom-metric m": 2, "--kubeconfig a --custom-object Pod/x": 2,
		"--kubeconfig a --custom-root-object Node/x": 2, "--kubeconfig a --reference-server https://x": 2,
		"--metric m --kubeconfig a --reference-server https://x --reference-kubeconfig b": 2, "--kubeconfig /none --pod x": 2, "--list --output nothing": 0, "--metric m --server https://x --output nothing": 2,
	} {
		var out, problems bytes.Buffer
		if got := run(strings.Fields(arguments), &out, &problems); got != want {
			t.Errorf("%q: exit %d, expected %d: %s", arguments, got, want, problems.String())
		}
		if want == 2 && problems.Len() == 0 {
			t.Errorf("%q: no message", arguments)
		}
	}
}
