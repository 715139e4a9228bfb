package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// A renderer prints results as they arrive, and a summary at the end.
type renderer struct {
	each func(io.Writer) func(Result)
	end  func(io.Writer, Report)
}

var renderers = map[string]renderer{
	"text":     {each: textLine, end: func(out io.Writer, r Report) { fmt.Fprintln(out, total(r)) }},
	"json":     {each: silent, end: writeJSON},
	"markdown": {each: silent, end: markdown},
}

func silent(io.Writer) func(Result) { return func(Result) {} }

func textLine(out io.Writer) func(Result) {
	return func(r Result) {
		fmt.Fprintf(out, "%-4s  %-32s %-6s %s  (%s)\n", r.Outcome, r.ID, r.Level, r.Promise, oneLine(r.Observed, 600))
	}
}

func total(r Report) string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", r.Passed, r.Failed, r.Skipped)
}

func writeJSON(out io.Writer, r Report) {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		fmt.Fprintln(out, err)
	}
}

// markdown contains no addresses or times, so that two runs of an unchanged server give almost the same text.
func markdown(out io.Writer, r Report) {
	levels := map[Level]int{}
	for _, check := range r.Checks {
		if check.Outcome == "FAIL" {
			levels[check.Level]++
		}
	}
	fmt.Fprintf(out, "%s (failed: %d must, %d should).\n\n", total(r), levels[must], levels[should])
	fmt.Fprintln(out, "| | check | level | promise | observed |\n|---|---|---|---|---|")
	var reasons []string
	skipped := map[string][]string{}
	for _, check := range r.Checks {
		mark := check.Outcome
		switch mark {
		case "skip":
			if skipped[check.Observed] == nil {
				reasons = append(reasons, check.Observed)
			}
			skipped[check.Observed] = append(skipped[check.Observed], "`"+check.ID+"`")
			continue
		case "FAIL":
			mark = "**FAIL**"
		}
		fmt.Fprintf(out, "| %s | `%s` | %s | %s | %s |\n", mark, check.ID, check.Level, cell(check.Promise), cell(oneLine(check.Observed, 300)))
	}
	for _, reason := range reasons {
		fmt.Fprintf(out, "\nSkipped, %s: %s.\n", reason, strings.Join(skipped[reason], ", "))
	}
}

// cell escapes a text for a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`, "`", "'").Replace(text)
}

// oneLine collapses white space, drops what cannot be printed, and truncates.
func oneLine(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return text
}

func printList(out io.Writer, checks []Check) {
	for _, check := range checks {
		fmt.Fprintf(out, "%s  %s\n    %s\n    why: %s\n", check.ID, check.Level, check.Promise, check.Why)
	}
	fmt.Fprintf(out, "%d checks\n", len(checks))
}
