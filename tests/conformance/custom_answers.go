package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"sigs.k8s.io/yaml"
)

// What the answers hold, and in which encodings.
var customAnswerChecks = []Check{
	{
		ID: "custom/shape-v1beta1", Level: must, Needs: []need{custom},
		Promise: "in v1beta1, the answer is a MetricValueList of that version, and its item has describedObject, metricName, timestamp and value",
		Why:     "clients decode the version that they asked for: it calls the name metricName, and the window `window`",
		Run: func(e *Env) (string, error) {
			return e.customShape("v1beta1", []string{"describedObject", "metricName", "timestamp", "value"}, []string{"metric", "windowSeconds"})
		},
	},
	{
		ID: "custom/shape-v1beta2", Level: must, Needs: []need{custom},
		Promise: "in v1beta2, the answer is a MetricValueList of that version, and its item has describedObject, metric, timestamp and value",
		Why:     "it calls the name metric.name, and the window windowSeconds; a client that finds none has a metric without a name",
		Run: func(e *Env) (string, error) {
			return e.customShape("v1beta2", []string{"describedObject", "metric", "timestamp", "value"}, []string{"metricName", "window"})
		},
	},
	{
		ID: "custom/same-in-both", Level: must, Needs: []need{custom},
		Promise: "both versions have the same objects and metrics",
		Why:     "an upgrade of the cluster changes the version, and must not change the number of replicas",
		Run:     (*Env).sameInBoth,
	},
	{
		ID: "custom/all", Level: must, Needs: []need{custom},
		Promise: "`*` without a labelSelector, and with an empty one, is a list that has the object under test, or a Status",
		Why:     "an empty selector of an HPA arrives so, and selects everything",
		Run:     (*Env).customAll,
	},
	{
		ID: "custom/window", Level: must, Needs: []need{custom},
		Promise: "windowSeconds, if there is one, is a whole number and not negative",
		Why:     "the client cannot decode a duration there, and fails for the whole list",
		Run: func(e *Env) (string, error) {
			list, err := e.singleCustom(e.oneObjectPath("v1beta2"))
			if err != nil {
				return "", err
			}
			seconds := list.Items[0].WindowSeconds
			if seconds == nil {
				return "none", nil
			}
			return fmt.Sprintf("%d s", *seconds), errorUnless(*seconds >= 0, "%d s", *seconds)
		},
	},
	{
		ID: "custom/timestamp-recent", Level: should, Needs: []need{custom},
		Promise: "the timestamp is within the last hour and not in the future",
		Why:     "the HPA does not check it, and uses a number from yesterday as a current one",
		Run: func(e *Env) (string, error) {
			list, err := e.singleCustom(e.oneObjectPath("v1beta2"))
			if err != nil {
				return "", err
			}
			age := time.Since(list.Items[0].Timestamp.Time).Round(time.Second)
			return fmt.Sprintf("%s old", age), errorUnless(age > -5*time.Second && age < time.Hour, "%s old", age)
		},
	},
	{
		ID: "custom/selector-named", Level: should, Needs: []need{custom},
		Promise: "in v1beta2, metric.selector of an item is the metricLabelSelector that it was read with",
		Why:     "it is the field's meaning in the API, and the only way to see which series a value is of",
		Run: func(e *Env) (string, error) {
			list, err := e.singleCustom(e.oneObjectPath("v1beta2") + "?metricLabelSelector=%21conformance_absent")
			if err != nil {
				return "", err
			}
			observed := metav1.FormatLabelSelector(list.Items[0].Metric.Selector)
			return observed, errorUnless(observed == "!conformance_absent", "metric.selector %s", observed)
		},
	},
	{
		ID: "custom/list-options", Level: must, Needs: []need{custom},
		Promise: "limit, resourceVersion, timeoutSeconds, pretty and unknown parameters change nothing",
		Why:     "kubectl sends limit=500, and clients of other languages their own",
		Run: func(e *Env) (string, error) {
			options := []string{"limit=500", "resourceVersion=0", "timeoutSeconds=30", "pretty=true", "watch=false", "conformance=x"}
			return strings.Join(options, ", "), forEach(options, func(option string) error {
				_, err := e.singleCustom(e.oneObjectPath("v1beta2") + "?" + option)
				return err
			})
		},
	},
	{
		ID: "custom/accept-hpa", Level: must, Needs: []need{custom},
		Promise: "the HPA's `" + hpaAccept + "` gets protobuf or JSON in both versions, with the matching Content-Type",
		Why:     "the client decodes by the Content-Type of the answer, and fails for text/plain or none",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach(customVersions, func(version string) error {
				answer, err := e.get(e.oneObjectPath(version), accept(hpaAccept))
				if err != nil {
					return err
				}
				observed = answer.contentType()
				if observed == protobufType {
					return inCase(version, decodeCustom(answer, version))
				}
				list := metav1.PartialObjectMetadataList{}
				err = answer.json(&list)
				return inCase(version, orUnless(err, list.Kind == "MetricValueList", "%s", answer))
			})
			return observed, err
		},
	},
	{
		ID: "custom/protobuf", Level: should, Needs: []need{custom},
		Promise: "application/vnd.kubernetes.protobuf gets protobuf that Kubernetes' decoder reads, in both versions",
		Why:     "what the HPA prefers, and cheaper in large clusters",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach(customVersions, func(version string) error {
				answer, err := e.get(e.oneObjectPath(version), accept(protobufType))
				if err == nil {
					observed = fmt.Sprintf("%d bytes", len(answer.Body))
					err = decodeCustom(answer, version)
				}
				return inCase(version, err)
			})
			return observed, err
		},
	},
	{
		ID: "custom/yaml", Level: should, Needs: []need{custom},
		Promise: "application/yaml gets the same data in YAML",
		Why:     "for people; every Kubernetes server supports it",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.oneObjectPath("v1beta2"), accept("application/yaml"))
			if err != nil {
				return "", err
			}
			list := v1beta2.MetricValueList{}
			if answer.Code != http.StatusOK || answer.contentType() != "application/yaml" {
				return "", fmt.Errorf("%s", answer)
			}
			err = yaml.Unmarshal(answer.Body, &list)
			return "1 item", orUnless(err, len(list.Items) == 1 && list.Kind == "MetricValueList", "%s", answer)
		},
	},
	{
		ID: "custom/accept-unknown", Level: should, Needs: []need{custom},
		Promise: "an unsupported type gets 406 NotAcceptable",
		Why:     "a client that reads no other type must get an error",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(e.oneObjectPath("v1beta2"), accept("application/xml"))
			if err != nil {
				return "", err
			}
			return answer.refused(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable)
		},
	},
}

// orUnless is the error, or one of this text unless ok.
func orUnless(err error, ok bool, format string, arguments ...any) error {
	if err != nil {
		return err
	}
	return errorUnless(ok, format, arguments...)
}

// oneObjectPath is the path of the metric under test of the object under test.
func (e *Env) oneObjectPath(version string) string {
	_, name := e.object()
	return e.customObjectPath(version, name)
}

// decodeCustom decodes one item in protobuf.
func decodeCustom(answer *Answer, version string) error {
	items := 0
	var err error
	if version == "v1beta1" {
		var list *v1beta1.MetricValueList
		if list, err = fromProtobuf[*v1beta1.MetricValueList](answer); err == nil {
			items = len(list.Items)
		}
	} else {
		var list *v1beta2.MetricValueList
		if list, err = fromProtobuf[*v1beta2.MetricValueList](answer); err == nil {
			items = len(list.Items)
		}
	}
	return orUnless(err, items == 1, "%d items", items)
}

func (e *Env) customShape(version string, fields, foreign []string) (string, error) {
	answer, err := e.get(e.oneObjectPath(version), accept("application/json"))
	if err != nil {
		return "", err
	}
	var raw struct {
		Kind       string                       `json:"kind"`
		APIVersion string                       `json:"apiVersion"`
		Metadata   *map[string]any              `json:"metadata"`
		Items      []map[string]json.RawMessage `json:"items"`
	}
	if err := answer.json(&raw); err != nil {
		return "", err
	}
	if raw.Kind != "MetricValueList" || raw.APIVersion != customGroup+"/"+version || raw.Metadata == nil || len(raw.Items) != 1 {
		return "", fmt.Errorf("expected one item of %s: %s", version, answer)
	}
	for _, field := range fields {
		if _, found := raw.Items[0][field]; !found {
			return "", fmt.Errorf("an item without %s: %s", field, answer)
		}
	}
	for _, field := range foreign {
		if _, found := raw.Items[0][field]; found {
			return "", fmt.Errorf("an item with %s, a field of the other version: %s", field, answer)
		}
	}
	if !strings.HasPrefix(string(raw.Items[0]["value"]), `"`) {
		return "", fmt.Errorf("value %s is no string", raw.Items[0]["value"])
	}
	return oneLine(string(answer.Body), 250), nil
}

// sameInBoth compares names, not values and times, which may change between two requests.
func (e *Env) sameInBoth() (string, error) {
	name := "*"
	if e.customList == "" {
		_, name = e.object()
	}
	query := "?labelSelector=" + escape(e.customList)
	read := func(version string, into any) error {
		answer, err := e.get(e.customObjectPath(version, name) + query)
		if err == nil {
			err = answer.json(into)
		}
		return inCase(version, err)
	}
	older, newer := v1beta1.MetricValueList{}, v1beta2.MetricValueList{}
	if err := read("v1beta1", &older); err != nil {
		return "", err
	}
	if err := read("v1beta2", &newer); err != nil {
		return "", err
	}
	var first, second []string
	for _, item := range older.Items {
		first = append(first, item.DescribedObject.Kind+" "+item.DescribedObject.Namespace+"/"+item.DescribedObject.Name+" "+item.MetricName)
	}
	for _, item := range newer.Items {
		second = append(second, item.DescribedObject.Kind+" "+item.DescribedObject.Namespace+"/"+item.DescribedObject.Name+" "+item.Metric.Name)
	}
	slices.Sort(first)
	slices.Sort(second)
	return strings.Join(second, ", "), errorUnless(len(first) > 0 && slices.Equal(first, second), "v1beta1 has %q, v1beta2 %q", first, second)
}

func (e *Env) customAll() (string, error) {
	observed := ""
	_, name := e.object()
	err := forEach([]string{"", "?labelSelector="}, func(query string) error {
		answer, err := e.get(e.customObjectPath("v1beta2", "*") + query)
		if err != nil {
			return err
		}
		observed = fmt.Sprintf("HTTP %d", answer.Code)
		if answer.Code != http.StatusOK {
			_, err := answer.status()
			return err
		}
		list := v1beta2.MetricValueList{}
		if err := answer.json(&list); err != nil {
			return err
		}
		observed = fmt.Sprintf("%d items", len(list.Items))
		has := slices.ContainsFunc(list.Items, func(item v1beta2.MetricValue) bool { return item.DescribedObject.Name == name })
		return errorUnless(has && list.Kind == "MetricValueList", "%s is not among %d items", name, len(list.Items))
	})
	return observed, err
}
