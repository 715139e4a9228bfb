package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// How often a comparison is tried before a difference counts, because values change between two reads: less often if one of the servers has none,
// which passes only while series appear. And how long apart.
const (
	comparisonAttempts = 4
	absenceAttempts    = 2
	comparisonPause    = time.Second // of Env.pause, which tests shorten
)

// An outcome is what a read of either server came to: an error's code and reason, or the value of each series, object or container.
type outcome struct {
	code   int
	reason metav1.StatusReason
	text   string
	values map[string]float64
}

func (o outcome) String() string {
	if o.code != http.StatusOK {
		return fmt.Sprintf("%d %s: %s", o.code, o.reason, oneLine(o.text, 100))
	}
	var parts []string
	for _, key := range sortedKeys(o.values) {
		parts = append(parts, fmt.Sprintf("%s=%g", key, o.values[key]))
	}
	return fmt.Sprintf("%d values %s", len(parts), oneLine(strings.Join(parts, " "), 160))
}

// isUndefined is true of an answer whose only value is the smallest or largest number: prometheus-adapter makes these of NaN and of infinities.
func (o outcome) isUndefined() bool {
	for _, value := range o.values {
		if math.Abs(value) > math.MaxInt64/1000-1e6 {
			return true
		}
	}
	return false
}

// answerItem has the fields of the items of all three groups that a comparison is about.
type answerItem struct {
	MetricLabels    map[string]string    `json:"metricLabels"`
	DescribedObject core.ObjectReference `json:"describedObject"`
	Metadata        metav1.ObjectMeta    `json:"metadata"`
	Value           *resource.Quantity   `json:"value"`
	Window          string               `json:"window"`
	Usage           core.ResourceList    `json:"usage"`
	Containers      []struct {
		Name  string            `json:"name"`
		Usage core.ResourceList `json:"usage"`
	} `json:"containers"`
}

// read reduces the answer under a path to what is compared. It reads as an administrator, because rights are no part of the comparison.
func (e *Env) read(path string) (outcome, error) {
	answer, err := e.get(path, asIdentity(superuser))
	if err != nil {
		return outcome{}, err
	}
	if answer.Code != http.StatusOK {
		status := metav1.Status{}
		// An error that is no Status has no reason; other checks are about that.
		_ = json.Unmarshal(answer.Body, &status)
		return outcome{code: answer.Code, reason: status.Reason, text: orText(status.Message, string(answer.Body))}, nil
	}
	var list struct {
		Kind  string       `json:"kind"`
		Items []answerItem `json:"items"`
	}
	if err := answer.json(&list); err != nil {
		return outcome{}, err
	}
	if !strings.HasSuffix(list.Kind, "List") {
		return outcome{}, fmt.Errorf("%s is no list: %s", path, answer)
	}
	values := map[string]float64{}
	add := func(key string, quantity resource.Quantity) {
		for _, taken := values[key]; taken; _, taken = values[key] {
			key += " again"
		}
		values[key] = quantity.AsApproximateFloat64()
	}
	for _, item := range list.Items {
		item.add(add)
	}
	return outcome{code: answer.Code, values: values}, nil
}

func (i answerItem) add(add func(string, resource.Quantity)) {
	described := i.DescribedObject
	switch {
	case i.Value != nil && described.Kind != "":
		// prometheus-adapter writes the version of the core group as /v1.
		version := strings.TrimPrefix(described.APIVersion, "/")
		add(version+" "+described.Kind+" "+described.Namespace+"/"+described.Name, *i.Value)
	case i.Value != nil:
		add("{"+labels.Set(i.MetricLabels).String()+"}", *i.Value)
	case i.Usage != nil:
		for name, quantity := range i.Usage {
			add(i.Metadata.Name+" "+string(name)+" in "+i.Window, quantity)
		}
	default:
		for _, container := range i.Containers {
			for name, quantity := range container.Usage {
				add(i.Metadata.Namespace+"/"+i.Metadata.Name+"/"+container.Name+" "+string(name)+" in "+i.Window, quantity)
			}
		}
	}
}

// A tally counts comparisons.
type tally struct{ same, undefined int }

func (t *tally) String() string {
	text := fmt.Sprintf("%d answers the same", t.same)
	if t.undefined > 0 {
		text += fmt.Sprintf(", %d errors where the value is not a number", t.undefined)
	}
	return text
}

// sameAnswer reads a path from the second server, from the one under test, and from the second once more. The answer must lie between.
func (e *Env) sameAnswer(count *tally, path string) error {
	for attempt := 1; ; attempt++ {
		before, err := e.reference.read(path)
		if err != nil {
			return fmt.Errorf("the server to compare with: %w", err)
		}
		here, err := e.read(path)
		if err != nil {
			return err
		}
		after, err := e.reference.read(path)
		if err != nil {
			return fmt.Errorf("the server to compare with: %w", err)
		}
		switch {
		case e.isBetween(before, here, after):
			count.same++
			return nil
		case before.isUndefined() && here.code >= 500:
			count.undefined++
			return nil
		case attempt == comparisonAttempts, attempt == absenceAttempts && (here.code != http.StatusOK) != (after.code != http.StatusOK):
			return fmt.Errorf("%s: expected %s; observed %s", path, after, here)
		}
		time.Sleep(e.pause)
	}
}

func (e *Env) isBetween(before, here, after outcome) bool {
	if before.code != http.StatusOK || here.code != http.StatusOK || after.code != http.StatusOK {
		return before.code != http.StatusOK && here.code != http.StatusOK && after.code != http.StatusOK
	}
	keys := sortedKeys(here.values)
	if !slices.Equal(keys, sortedKeys(before.values)) || !slices.Equal(keys, sortedKeys(after.values)) {
		return false
	}
	return !slices.ContainsFunc(keys, func(key string) bool {
		least, most := min(before.values[key], after.values[key]), max(before.values[key], after.values[key])
		// A thousandth is the unit of a Quantity.
		slack := e.tolerance*max(math.Abs(least), math.Abs(most)) + 0.001
		return here.values[key] < least-slack || here.values[key] > most+slack
	})
}

// compareCodes expects an error with the same code and reason, or the same success.
func (e *Env) compareCodes(paths []string) (string, error) {
	observed := map[string]bool{}
	err := forEach(paths, func(path string) error {
		there, err := e.reference.read(path)
		if err != nil {
			return err
		}
		here, err := e.read(path)
		if err != nil {
			return err
		}
		observed[strings.TrimSpace(fmt.Sprintf("%d %s", there.code, there.reason))] = true
		return errorUnless(there.code == here.code && there.reason == here.reason, "%s: expected %s; observed %s", path, there, here)
	})
	return strings.Join(sorted(observed), ", "), err
}

func sortedKeys(values map[string]float64) []string {
	var keys []string
	for key := range values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// listed returns the entries of a group's version by name, without those that --reference-ignore names. It skips the check where the group is not
// served.
func (e *Env) listed(path string) (map[string]metav1.APIResource, error) {
	list := metav1.APIResourceList{}
	answer, err := e.get(path, accept("application/json"), asIdentity(superuser))
	if err == nil && answer.Code == http.StatusNotFound {
		return nil, skip("the server to compare with has no " + strings.TrimPrefix(path, "/apis/"))
	}
	if err == nil {
		err = answer.json(&list)
	}
	if err == nil && list.Kind != "APIResourceList" {
		err = fmt.Errorf("%s", answer)
	}
	entries := map[string]metav1.APIResource{}
	for _, entry := range list.APIResources {
		if e.ignored == nil || !e.ignored.MatchString(entry.Name) {
			entries[entry.Name] = entry
		}
	}
	return entries, err
}

// referenceMetrics returns the names that the second server lists, of which there is at least one.
func (e *Env) referenceMetrics(path string) ([]string, map[string]metav1.APIResource, error) {
	entries, err := e.reference.listed(path)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for name := range entries {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return nil, nil, skip("the server to compare with lists no metrics under " + path)
	}
	return names, entries, nil
}

// sameList expects each metric that the second server lists, with the same scope. The server under test may have more.
func (e *Env) sameList(path string) (string, error) {
	names, expected, err := e.referenceMetrics(path)
	if err != nil {
		return "", err
	}
	here, err := e.listed(path)
	if err != nil {
		return "", fmt.Errorf("here: %w", err)
	}
	return fmt.Sprintf("%d metrics, and %d more", len(names), len(here)-len(names)), forEach(names, func(name string) error {
		entry, found := here[name]
		return errorUnless(found && entry.Namespaced == expected[name].Namespaced, "%s: listed %v, with namespaced: %v", name, found, entry.Namespaced)
	})
}

func (e *Env) comparedNamespaces() []string {
	if namespaces := split(e.referenceNamespaces); len(namespaces) > 0 {
		return namespaces
	}
	return []string{e.namespace}
}
