package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"k8s.io/metrics/pkg/client/external_metrics"
)

// The largest number that MilliValue() reads correctly: above it wraps, to zero or below.
const largest = math.MaxInt64 / 1000

var dataChecks = []Check{
	{
		ID: "data/client-protobuf", Level: must,
		Promise: "the HPA's client (external_metrics of k8s.io/metrics, set to protobuf as kube-controller-manager is) gets the value",
		Why:     "it is the client that scales",
		Run:     func(e *Env) (string, error) { return e.byClient(protobufType) },
	},
	{
		ID: "data/client-json", Level: must,
		Promise: "the same client set to JSON gets the value",
		Why:     "KEDA, tools and tests use it so",
		Run:     func(e *Env) (string, error) { return e.byClient("application/json") },
	},
	{
		ID: "data/shape", Level: must,
		Promise: "the answer is an ExternalMetricValueList of the version asked, whose items are an array with metricName, metricLabels, timestamp and value",
		Why:     "these fields are required by the API; clients in other languages decode strictly",
		Run:     (*Env).shape,
	},
	{
		ID: "data/one-item", Level: should,
		Promise: "a selector that names one series gives one item",
		Why:     "the HPA adds all items up: a second one doubles the number",
		Run: func(e *Env) (string, error) {
			list, err := e.value()
			if err == nil && len(list.Items) != 1 {
				err = fmt.Errorf("%d items for %q", len(list.Items), e.selector)
			}
			return "1 item", err
		},
	},
	{
		ID: "data/several-items", Level: must, Needs: []need{several},
		Promise: "a selector that several series match gives one item each, told apart by their labels",
		Why:     "the HPA's sum is right only if each series is in it once",
		Run:     (*Env).severalItems,
	},
	{
		ID: "data/no-selector", Level: must,
		Promise: "without labelSelector, and with an empty one, the answer is a list or a Status",
		Why:     "an HPA without a selector sends none",
		Run: func(e *Env) (string, error) {
			seen := ""
			err := each([]string{"", "?labelSelector="}, func(query string) error {
				answer, err := e.get(e.dataPath(e.metric, "")+query, accept(hpaAccept))
				if err == nil {
					seen = fmt.Sprintf("HTTP %d", answer.Code)
					err = answer.listOrStatus()
				}
				return err
			})
			return seen, err
		},
	},
	{
		ID: "data/name", Level: should,
		Promise: "every item's metricName is the name asked for",
		Why:     "people and tools that read several metrics tell them apart by it",
		Run: func(e *Env) (string, error) {
			return e.everyItem(func(item v1beta1.ExternalMetricValue) (string, error) {
				return item.MetricName, unlessError(item.MetricName == e.metric, "metricName %q", item.MetricName)
			})
		},
	},
	{
		ID: "data/labels", Level: should,
		Promise: "every item's metricLabels satisfy the selector",
		Why:     "they are the only way to see which series was read",
		Run: func(e *Env) (string, error) {
			selector, err := labels.Parse(e.selector)
			if err != nil {
				return "", err
			}
			return e.everyItem(func(item v1beta1.ExternalMetricValue) (string, error) {
				seen := labels.Set(item.MetricLabels).String()
				return seen, unlessError(selector.Matches(labels.Set(item.MetricLabels)), "%q does not select {%s}", e.selector, seen)
			})
		},
	},
	{
		ID: "data/quantity", Level: must,
		Promise: "every value is a string that Kubernetes parses, not negative and at most 9223372036854775",
		Why:     "an HPA takes a negative number for an overflow and scales to the maximum; a larger one wraps, to zero or below",
		Run: func(e *Env) (string, error) {
			return e.everyQuantity(func(text string, quantity resource.Quantity) error {
				limit := resource.NewQuantity(largest, resource.DecimalSI)
				return unlessError(quantity.Sign() >= 0 && quantity.Cmp(*limit) <= 0, "%s", text)
			})
		},
	},
	{
		ID: "data/quantity-canonical", Level: should,
		Promise: "every value is written as Kubernetes would write it",
		Why:     "what is compared or shown as text then agrees with what was decoded and written again",
		Run: func(e *Env) (string, error) {
			return e.everyQuantity(func(text string, quantity resource.Quantity) error {
				// Quantity remembers the text that it was parsed from; a sum with zero forgets it.
				fresh := resource.NewQuantity(0, quantity.Format)
				fresh.Add(quantity)
				return unlessError(fresh.String() == text, "%q, canonical is %q", text, fresh.String())
			})
		},
	},
	{
		ID: "data/timestamp", Level: must,
		Promise: "every timestamp is RFC 3339",
		Why:     "the client cannot decode another",
		Run: func(e *Env) (string, error) {
			return e.everyItem(func(item v1beta1.ExternalMetricValue) (string, error) {
				return item.Timestamp.UTC().Format(time.RFC3339), unlessError(!item.Timestamp.IsZero(), "no timestamp")
			})
		},
	},
	{
		ID: "data/timestamp-recent", Level: should,
		Promise: "every timestamp is of the last hour and not of the future",
		Why:     "nobody else checks: the HPA uses a number of yesterday as one of now",
		Run: func(e *Env) (string, error) {
			return e.everyItem(func(item v1beta1.ExternalMetricValue) (string, error) {
				age := time.Since(item.Timestamp.Time).Round(time.Second)
				return fmt.Sprintf("%s old", age), unlessError(age > -5*time.Second && age < time.Hour, "%s old", age)
			})
		},
	},
	{
		ID: "data/list-options", Level: must,
		Promise: "limit, resourceVersion, timeoutSeconds, pretty and parameters that nobody knows change nothing",
		Why:     "kubectl sends limit=500 with every get",
		Run: func(e *Env) (string, error) {
			options := []string{"limit=500", "resourceVersion=0", "timeoutSeconds=30", "pretty=true", "watch=false", "conformance=x"}
			return strings.Join(options, ", "), each(options, func(option string) error {
				answer, err := e.get(with(e.dataPath(e.metric, e.selector), option))
				if err == nil {
					_, err = answer.list()
				}
				if err != nil {
					err = fmt.Errorf("%s: %w", option, err)
				}
				return err
			})
		},
	},
	{
		ID: "data/other-namespace", Level: should,
		Promise: "a namespace that does not exist gives an empty list or a 404 Status, not another namespace's series",
		Why:     "an HPA must never scale on a stranger's number",
		Run: func(e *Env) (string, error) {
			answer, err := e.get(strings.Replace(e.dataPath(e.metric, e.selector), "/namespaces/"+e.namespace+"/", "/namespaces/conformance-no-such-namespace/", 1))
			if err != nil {
				return "", err
			}
			return answer.nothing()
		},
	},
}

func unlessError(fine bool, format string, arguments ...any) error {
	if fine {
		return nil
	}
	return fmt.Errorf(format, arguments...)
}

// byClient asks with the real client under this content type.
func (e *Env) byClient(contentType string) (string, error) {
	config := rest.CopyConfig(e.config)
	config.ContentType = contentType
	client, err := external_metrics.NewForConfig(config)
	if err != nil {
		return "", err
	}
	selector, err := labels.Parse(e.selector)
	if err != nil {
		return "", err
	}
	list, err := client.NamespacedMetrics(e.namespace).List(e.metric, selector)
	if err != nil {
		return "", err
	}
	if len(list.Items) == 0 {
		return "", fmt.Errorf("no metrics returned from external metrics API")
	}
	return fmt.Sprintf("%d items, the first %s of %s", len(list.Items), list.Items[0].Value.String(), list.Items[0].Timestamp.UTC().Format(time.TimeOnly)), nil
}

func (e *Env) shape() (string, error) {
	if _, err := e.value(); err != nil {
		return "", err
	}
	answer, err := e.data(e.selector, accept("application/json"))
	if err != nil {
		return "", err
	}
	var raw struct {
		Metadata *map[string]any              `json:"metadata"`
		Items    []map[string]json.RawMessage `json:"items"`
	}
	if err := answer.json(&raw); err != nil {
		return "", err
	}
	if raw.Metadata == nil {
		return "", fmt.Errorf("no metadata: %s", answer)
	}
	return oneLine(string(answer.Body), 250), each(raw.Items, func(item map[string]json.RawMessage) error {
		for _, field := range []string{"metricName", "metricLabels", "timestamp", "value"} {
			if _, found := item[field]; !found {
				return fmt.Errorf("an item without %s: %s", field, answer)
			}
		}
		return nil
	})
}

func (e *Env) severalItems() (string, error) {
	answer, err := e.data(e.multiSelector)
	if err != nil {
		return "", err
	}
	list, err := answer.list()
	if err != nil {
		return "", err
	}
	if len(list.Items) < 2 {
		return "", fmt.Errorf("%d items for %q", len(list.Items), e.multiSelector)
	}
	seen := map[string]bool{}
	for _, item := range list.Items {
		series := labels.Set(item.MetricLabels).String()
		if seen[series] {
			return "", fmt.Errorf("two items are labelled {%s}", series)
		}
		seen[series] = true
	}
	return fmt.Sprintf("%d items", len(list.Items)), nil
}

func (e *Env) everyItem(look func(v1beta1.ExternalMetricValue) (string, error)) (string, error) {
	list, err := e.value()
	if err != nil {
		return "", err
	}
	seen := ""
	err = each(list.Items, func(item v1beta1.ExternalMetricValue) (wrong error) {
		seen, wrong = look(item)
		return wrong
	})
	return seen, err
}

// everyQuantity looks at values as they stand in the JSON.
func (e *Env) everyQuantity(look func(string, resource.Quantity) error) (string, error) {
	answer, err := e.data(e.selector)
	if err != nil {
		return "", err
	}
	var raw struct {
		Items []struct {
			Value any `json:"value"`
		} `json:"items"`
	}
	if err := answer.json(&raw); err != nil {
		return "", err
	}
	if len(raw.Items) == 0 {
		return "", fmt.Errorf("no items: %s", answer)
	}
	var seen []string
	for _, item := range raw.Items {
		text, isText := item.Value.(string)
		if !isText {
			return "", fmt.Errorf("value %v is no string", item.Value)
		}
		quantity, err := resource.ParseQuantity(text)
		if err == nil {
			err = look(text, quantity)
		}
		if err != nil {
			return "", err
		}
		seen = append(seen, text)
	}
	return strings.Join(seen, ", "), nil
}

// listOrStatus is no error for a list in any representation of the HPA's, nor for a Status.
func (a *Answer) listOrStatus() error {
	var err error
	switch {
	case a.Code != 200:
		_, err = a.status()
	case a.contentType() == protobufType:
		_, err = a.protobufList()
	default:
		_, err = a.list()
	}
	return err
}

// nothing is no error for the two ways to say that there is no such series: an empty list, or a 404 Status.
func (a *Answer) nothing() (string, error) {
	if a.Code == 404 {
		status, err := a.status()
		if err != nil {
			return "", err
		}
		return "404 " + string(status.Reason) + ": " + oneLine(status.Message, 120), nil
	}
	list, err := a.list()
	if err != nil {
		return "", fmt.Errorf("expected an empty list or a 404 Status: %w", err)
	}
	if len(list.Items) > 0 {
		return "", fmt.Errorf("%d items: %s", len(list.Items), a)
	}
	return "200 with no items", nil
}
