package main

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Requirements that an HPA can send besides the selector under test. None of them deselects the series, if absent labels mean what they mean in Kubernetes.
var hpaForms = []string{"!absent", "absent notin (a)", "absent notin (a,b)"}

// Valid, but never sent by an HPA.
var otherForms = []string{"absent!=a", " !absent ", "absent notin ( a , b )", "absent notin (a,)", "!in", "!notin"}

// Valid keys that some backends cannot store as a label.
var qualifiedKeys = []string{"!app.kubernetes.io/name", "app.kubernetes.io/name notin (x)", "!with-dash", "!a.b"}

// None of these is a label selector.
var malformed = []string{
	"a=b=c", "=a", "a in", "a in b", "a in (b", "a in (b))", ",", "a,", "a,,b", "!", "!a=b", "(", "a b", "a like b", "a!b",
	"-a=b", "a-=b", "a=-b", "a/b/c=d", "/a=b", "a/=b", "A.B/c=d", "a=b c", "a=meta-llama/Llama-3.1-8B", "a>b", "a<", "a>1.5", "é=b", "a=é", "a=\"b\"", "a='b'", "a~b",
	"a=" + strings.Repeat("b", 64), strings.Repeat("a", 64) + "=b", strings.Repeat("a", 254) + "/b=c", "a in (b,-)", "a={b}", "a=%", "a;b", "a===b",
}

var selectorChecks = []Check{
	{
		ID: "selector/forms-of-hpa", Level: must,
		Promise: "requirements that hold for a series without the label (" + strings.Join(hpaForms, "; ") + ") leave the series selected",
		Why:     "an HPA's matchExpressions arrive in this form; absent labels satisfy NotIn and DoesNotExist everywhere in Kubernetes",
		Run:     func(e *Env) (string, error) { return e.stillSelected(hpaForms) },
	},
	{
		ID: "selector/forms-of-others", Level: should,
		Promise: "the rest of the grammar is supported: !=, spaces, empty values, keys named like operators",
		Why:     "people and other clients write what `kubectl -l` accepts",
		Run:     func(e *Env) (string, error) { return e.stillSelected(otherForms) },
	},
	{
		ID: "selector/qualified-keys", Level: should,
		Promise: "keys with a prefix, a dash or a dot are supported, whatever the backend can store",
		Why:     "app.kubernetes.io/name is the most common key",
		Run:     func(e *Env) (string, error) { return e.stillSelected(qualifiedKeys) },
	},
	{
		ID: "selector/equality", Level: must,
		Promise: "KEY=VALUE and KEY==VALUE select the series with this label, and another value does not",
		Why:     "matchLabels of an HPA",
		Run: func(e *Env) (string, error) {
			return e.checkMeanings([]string{"%[1]s=%[2]s", "%[1]s==%[2]s"}, []string{"%[1]s=conformance-no-such-value"})
		},
	},
	{
		ID: "selector/in", Level: must,
		Promise: "KEY in (…) selects by any of the values",
		Why:     "matchExpressions with In",
		Run: func(e *Env) (string, error) {
			return e.checkMeanings([]string{"%[1]s in (%[2]s)", "%[1]s in (conformance-x,%[2]s)"}, []string{"%[1]s in (conformance-x,conformance-y)"})
		},
	},
	{
		ID: "selector/notin", Level: must,
		Promise: "KEY notin (…) excludes series with one of the values, and only those",
		Why:     "matchExpressions with NotIn",
		Run: func(e *Env) (string, error) {
			return e.checkMeanings([]string{"%[1]s notin (conformance-x)"}, []string{"%[1]s notin (%[2]s)", "%[1]s notin (conformance-x,%[2]s)"})
		},
	},
	{
		ID: "selector/exists", Level: must,
		Promise: "KEY selects series with the label, !KEY those without it",
		Why:     "matchExpressions with Exists and DoesNotExist",
		Run: func(e *Env) (string, error) {
			return e.checkMeanings([]string{"%[1]s"}, []string{"!%[1]s", "conformance_absent"})
		},
	},
	{
		ID: "selector/not-equal", Level: should,
		Promise: "KEY!=VALUE excludes the series with this value",
		Why:     "part of the grammar that every list in Kubernetes accepts",
		Run: func(e *Env) (string, error) {
			return e.checkMeanings([]string{"%[1]s!=conformance-x"}, []string{"%[1]s!=%[2]s"})
		},
	},
	{
		ID: "selector/compare", Level: should,
		Promise: "KEY>1 and KEY<1 compare integers, and do not select a series whose value is not a number",
		Why:     "part of the grammar; an HPA cannot send it",
		Run:     (*Env).compare,
	},
	{
		ID: "selector/literal", Level: must,
		Promise: "values are literal: a dot matches only a dot",
		Why:     "a value read as a regular expression selects other series, and the HPA adds them up",
		Run:     (*Env).literal,
	},
	{
		ID: "selector/both", Level: must,
		Promise: "requirements separated by commas must all hold",
		Why:     "the HPA sends all of them in one parameter",
		Run: func(e *Env) (string, error) {
			return e.checkMeanings([]string{"%[1]s=%[2]s,%[1]s in (%[2]s),!conformance_absent"}, []string{"%[1]s=%[2]s,%[1]s=conformance-x", "%[1]s=%[2]s,conformance_absent"})
		},
	},
	{
		ID: "selector/encodings", Level: must,
		Promise: "every percent-encoding of a selector means the same: + and %20, %3D and =, %2C and a comma, hex digits in either case",
		Why:     "client-go, browsers and kube-apiserver, which re-encodes queries, all differ",
		Run:     (*Env).encodings,
	},
	{
		ID: "selector/malformed-closed", Level: must,
		Promise: "a malformed selector never returns items",
		Why:     "a selector that is ignored selects everything, and the HPA adds everything up",
		Run: func(e *Env) (string, error) {
			return fmt.Sprintf("%d texts", len(malformed)), forEach(malformed, func(text string) error {
				answer, err := e.data(text)
				if err == nil && answer.Code == http.StatusOK {
					_, err = answer.emptyOrNotFound()
				}
				return inCase(text, err)
			})
		},
	},
	{
		ID: "selector/malformed-refused", Level: should,
		Promise: "a malformed selector gets 400 BadRequest, as a Status",
		Why:     "the HPA's condition then shows the error to the user",
		Run: func(e *Env) (string, error) {
			observed := ""
			err := forEach(malformed, func(text string) error {
				answer, err := e.data(text)
				if err == nil {
					observed, err = answer.refused(http.StatusBadRequest, metav1.StatusReasonBadRequest)
				}
				return inCase(text, err)
			})
			return observed, err
		},
	},
	{
		ID: "selector/long", Level: should,
		Promise: "a selector of 200 requirements is answered",
		Why:     "generated selectors are long, and a closed connection explains nothing",
		Run: func(e *Env) (string, error) {
			var parts []string
			for i := range 200 {
				parts = append(parts, fmt.Sprintf("!conformance_absent_%d", i))
			}
			return e.stillSelected([]string{strings.Join(parts, ",")})
		},
	},
}

// and adds requirements to the selector under test.
func (e *Env) and(more string) string {
	if e.selector == "" {
		return more
	}
	return e.selector + "," + more
}

// selects reports whether a selector returns items. It returns an error if the answer is neither a list nor a 404 Status.
func (e *Env) selects(selector string) (bool, error) {
	answer, err := e.data(selector)
	if err != nil {
		return false, inCase(selector, err)
	}
	if answer.Code == http.StatusOK {
		list, err := answer.list()
		return err == nil && len(list.Items) > 0, inCase(selector, err)
	}
	_, err = answer.emptyOrNotFound()
	return false, inCase(selector, err)
}

func (e *Env) stillSelected(more []string) (string, error) {
	if _, err := e.value(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d selectors", len(more)), forEach(more, func(requirement string) error {
		found, err := e.selects(e.and(requirement))
		if err == nil && !found {
			err = fmt.Errorf("%q: the series is no longer selected", oneLine(requirement, 60))
		}
		return err
	})
}

// label returns one label of the series under test whose key and value are valid in a selector.
func (e *Env) label() (key, value string, err error) {
	list, err := e.value()
	if err != nil {
		return "", "", err
	}
	named := list.Items[0].MetricLabels
	var usable []string
	for key, value := range named {
		if value != "" && len(validation.IsValidLabelValue(value)) == 0 && len(validation.IsQualifiedName(key)) == 0 {
			usable = append(usable, key)
		}
	}
	if len(usable) == 0 {
		return "", "", skip("the item has no label whose key and value a selector can hold")
	}
	slices.Sort(usable)
	// Prefer a label of the user's selector, because the server understands it.
	for _, key := range usable {
		if strings.HasPrefix(e.selector, key) {
			return key, named[key], nil
		}
	}
	return usable[0], named[usable[0]], nil
}

// checkMeanings checks the results of selectors on one label of the series. %[1]s is the key, %[2]s the value.
func (e *Env) checkMeanings(selected, not []string) (string, error) {
	key, value, err := e.label()
	if err != nil {
		return "", err
	}
	check := func(want bool) func(string) error {
		return func(form string) error {
			text := strings.NewReplacer("%[1]s", key, "%[2]s", value).Replace(form)
			found, err := e.selects(e.and(text))
			if err == nil && found != want {
				err = fmt.Errorf("%q: selected %v, expected %v", text, found, want)
			}
			return err
		}
	}
	if err := forEach(selected, check(true)); err != nil {
		return "", err
	}
	return "by " + key + "=" + value, forEach(not, check(false))
}

func (e *Env) compare() (string, error) {
	key, value, err := e.label()
	if err != nil {
		return "", err
	}
	if strings.Trim(value, "0123456789") == "" {
		return "", skip("the label is a number")
	}
	return e.checkMeanings(nil, []string{key + ">1", key + "<1", "conformance_absent>1"})
}

func (e *Env) literal() (string, error) {
	_, value, err := e.label()
	if err != nil {
		return "", err
	}
	if len(value) < 3 {
		return "", skip("the label's value is too short: " + value)
	}
	for middle := 1; middle < len(value)-1; middle++ {
		if value[middle] == '.' {
			continue
		}
		dotted := value[:middle] + "." + value[middle+1:]
		return e.checkMeanings([]string{"%[1]s notin (" + dotted + ",conformance-x)"}, []string{"%[1]s=" + dotted, "%[1]s in (" + dotted + ",conformance-x)"})
	}
	return "", skip("the label's value is all dots: " + value)
}

func (e *Env) encodings() (string, error) {
	key, value, err := e.label()
	if err != nil {
		return "", err
	}
	plain := fmt.Sprintf("%s=%s,%s in (%s,conformance-x)", key, value, key, value)
	query := url.QueryEscape(plain)
	every := ""
	for _, octet := range []byte(plain) {
		every += fmt.Sprintf("%%%02x", octet)
	}
	ways := map[string]string{
		"as client-go": query, "%20 for a space": strings.ReplaceAll(query, "+", "%20"), "lower-case hex": strings.NewReplacer("%3D", "%3d", "%2C", "%2c").Replace(query),
		"bare punctuation": strings.NewReplacer(" ", "+").Replace(plain), "every octet": every,
	}
	var names []string
	for name := range ways {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", "), forEach(names, func(name string) error {
		answer, err := e.get(e.dataPath(e.metric, "") + "?labelSelector=" + ways[name])
		if err == nil {
			_, err = nonEmpty(answer.list())
		}
		return inCase(name, err)
	})
}
