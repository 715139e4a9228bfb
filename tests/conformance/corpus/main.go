// Corpus writes the results of Kubernetes' own code for label selectors and quantities, as goldens for tests in other languages.
//
//	go run ./corpus DIR      writes DIR/selectors.json and DIR/quantities.json; the same bytes every time
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	seed      = 20261121
	generated = 400
	// The largest number of thousandths whose MilliValue() an autoscaler reads correctly.
	largestMilli = 9223372036854775 * 1000
)

// Selector is a text and the result of labels.Parse: an error, or the canonical form and one letter per label set, y where it matches.
type Selector struct {
	Selector  string `json:"selector"`
	Error     string `json:"error,omitempty"`
	Canonical string `json:"canonical,omitempty"`
	Matches   string `json:"matches,omitempty"`
}

// Quantity is a number of thousandths and how resource.Quantity prints it.
type Quantity struct {
	Milli int64  `json:"milli"`
	Text  string `json:"text"`
}

var sets = []labels.Set{
	{},
	{"a": "1"},
	{"a": "", "b": "x"},
	{"a": "x", "app.kubernetes.io/name": "x", "in": "y"},
	{"a": "10", "b": "-", "notin": "1", "x-y": "x.y"},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./corpus DIR")
		os.Exit(2)
	}
	if err := writeAll(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func writeAll(directory string) error {
	return errors.Join(
		write(filepath.Join(directory, "selectors.json"), append(lines(sets), lines(selectors())...)),
		write(filepath.Join(directory, "quantities.json"), lines(quantities())))
}

// lines returns one line of JSON per item, so that changes are readable.
func lines[T any](items []T) []string {
	var result []string
	for _, item := range items {
		var text strings.Builder
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(item); err != nil {
			panic(err) // plain values
		}
		result = append(result, strings.TrimSpace(text.String()))
	}
	return result
}

// write makes one array. In selectors.json the label sets come first.
func write(path string, lines []string) error {
	return os.WriteFile(path, []byte("[\n"+strings.Join(lines, ",\n")+"\n]\n"), 0o644)
}

func selectors() []Selector {
	texts := slices.Clone(handPicked)
	random := rand.New(rand.NewSource(seed))
	for range generated / 2 {
		texts = append(texts, wellFormed(random))
	}
	for range generated / 2 {
		texts = append(texts, mutated(random, wellFormed(random)))
	}
	seen := map[string]bool{}
	var file []Selector
	for _, text := range texts {
		if !seen[text] {
			seen[text] = true
			file = append(file, judge(text))
		}
	}
	return file
}

func judge(text string) Selector {
	parsed, err := labels.Parse(text)
	if err != nil {
		return Selector{Selector: text, Error: err.Error()}
	}
	result := Selector{Selector: text, Canonical: parsed.String()}
	for _, set := range sets {
		if parsed.Matches(set) {
			result.Matches += "y"
		} else {
			result.Matches += "n"
		}
	}
	return result
}

func one(random *rand.Rand, from ...string) string { return from[random.Intn(len(from))] }

// wellFormed is a selector of one to four requirements, with blanks wherever they are allowed.
func wellFormed(random *rand.Rand) string {
	var requirements []string
	for range 1 + random.Intn(4) {
		key := one(random, "a", "b", "in", "notin", "x-y", "app.kubernetes.io/name", "a.b-c.d/E.f_g", "absent")
		value := func() string { return one(random, "1", "x", "x.y", "", "in", "notin", "A-b_c.D", "10") }
		blank := func() string { return one(random, "", "", "", " ", "  ", "\t", "\n") }
		set := func() string {
			var values []string
			for range random.Intn(4) {
				values = append(values, blank()+value()+blank())
			}
			return "(" + strings.Join(values, ",") + ")"
		}
		requirements = append(requirements, blank()+one(random,
			key, "!"+blank()+key, key+blank()+"="+blank()+value(), key+blank()+"=="+blank()+value(), key+blank()+"!="+blank()+value(),
			key+" in"+blank()+set(), key+" notin"+blank()+set(),
			key+blank()+">"+blank()+fmt.Sprint(random.Intn(20)), key+blank()+"<"+blank()+fmt.Sprint(random.Intn(20)))+blank())
	}
	return strings.Join(requirements, ",")
}

// mutated is a text with one to three characters taken away, doubled, changed or put in. What comes out may still be a selector.
func mutated(random *rand.Rand, text string) string {
	runes := []rune(text)
	for range 1 + random.Intn(3) {
		at := random.Intn(len(runes) + 1)
		strange := []rune(one(random, "=", "!", "(", ")", ",", ">", "<", " ", "/", ".", "-", "_", "%", "\"", "'", "é", "\u00a0", "🙂", "~", "in", ":", "&", "+"))
		switch random.Intn(4) {
		case 0:
			runes = slices.Insert(runes, at, strange...)
		case 1:
			if at < len(runes) {
				runes = slices.Delete(runes, at, at+1)
			}
		case 2:
			if at < len(runes) {
				runes = slices.Insert(runes, at, runes[at])
			}
		case 3:
			if at < len(runes) {
				runes[at] = strange[0]
			}
		}
	}
	return string(runes)
}

func quantities() []Quantity {
	values := []int64{0, 1, 5, 10, 100, 500, 999, 1000, 1001, 1500, 2000, 3000, 1_200_000, 2_000_000, 12_500_000, 1_000_000_000, largestMilli, largestMilli - 1}
	for power := int64(1); power <= largestMilli/10; power *= 10 {
		values = append(values, power, power-1, power+1, 3*power)
	}
	random := rand.New(rand.NewSource(seed))
	for range 200 {
		// As many short numbers as long ones, and many trailing zeros, because suffixes come of them.
		value := random.Int63n(largestMilli) >> random.Intn(63)
		zeros := int64(1)
		for range random.Intn(12) {
			if value <= largestMilli/(zeros*10) {
				zeros *= 10
			}
		}
		values = append(values, value*zeros)
	}
	slices.Sort(values)
	var file []Quantity
	for _, milli := range slices.Compact(values) {
		file = append(file, Quantity{milli, resource.NewMilliQuantity(milli, resource.DecimalSI).String()})
	}
	return file
}

var handPicked = []string{
	"", " ", "\t\n", "a", "!a", "a=1", "a==1", "a!=1", "a in (1)", "a in (1,x)", "a notin (1,x)", "a>1", "a<1", "a=", "a==", "a!=", "a in ()", "a notin ()",
	"a in (,)", "a in (,1)", "a in (1,)", "a in (1,,x)", "a in (,,)", "a notin (,)", "a in(1)", "a  in  ( 1 , x )", "a\tin\n(1)", "in", "notin", "!in", "in in (in,notin)",
	"notin notin (in)", "in=y", "a=in", "a=notin", "a=1,b=x,!c", "b=x,a=1", "a=1,a=x", "a=1,a=1", "a, b", " a , ! b ", "!  a", "a = 1", "a == 1", "a != 1", "a > 1", "a < 1",
	"app.kubernetes.io/name=x", "!app.kubernetes.io/name", "app.kubernetes.io/name in (x)", "A=1", "_=1", "a_=1", "a-b.c_d=1", "0=1", "1/a=1", "a/0=1", "x-y=x.y",
	strings.Repeat("a", 63) + "=1", "a=" + strings.Repeat("b", 63), strings.Repeat("a", 253) + "/b=1", strings.Repeat("a.", 126) + "a/b",
	strings.Repeat("a", 64) + "=1", "a=" + strings.Repeat("b", 64), strings.Repeat("a", 254) + "/b=1", strings.Repeat("a.", 127) + "a/b",
	"a=b=c", "=a", "==", "!=", "=", "!", "!!a", "!=a", "!a=1", "!a in (1)", ",", ",a", "a,", "a,,b", "a in", "a in 1", "a in (1", "a in 1)", "a in (1))", "a in ((1)", "a in (1 x)",
	"a in (=)", "a in (!1)", "a in (1=x)", "a notin", "a like 1", "a 1", "a b=1", "a=1 b", "a=1 b=2", "a=1;b=2", "a=1&b=2", "(a)", "(", ")", "()", "a()", "a!1", "a!", "a=!1", "a!==1", "a===1",
	"a=<1", "a<=1", "a>=1", "a<>1", "a><1", "a>", "a<", "a>x", "a>1.5", "a>-1", "a>+1", "a>9223372036854775807", "a>9223372036854775808", "a<99999999999999999999", "a>1,a<20", "a>1=2",
	"-a=1", "a-=1", ".a=1", "a.=1", "_a", "a=-1", "a=1-", "a=_", "a=.", "a=x_", "a b", "a=x y", "/a=1", "a/=1", "a/b/c=1", "A.b/c=1", "a_b/c=1", "a-/b=1", "-a/b=1", "a..b/c=1", "a./b=1",
	"é=1", "a=é", "a=\u00a01", "\u00a0a", "a=\"1\"", "'a'=1", "a={1}", "a=[1]", "a=*", "*", "a~1", "a=~1", "a!~1", "a:1", "a=meta-llama/Llama-3.1-8B", "model=meta-llama/Llama-3.1-8B", "a=%31", "a%3D1", "a=1#", "\\", "a=\\",
	"a=1\r\n", "a\v=1", "a\f", "variant_name=llama,exported_namespace=llm", "exported_namespace in (llm),variant_name notin (a,b),!c,d",
}
