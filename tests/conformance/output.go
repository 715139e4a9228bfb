package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// A renderer shows results as they come, and the whole at the end.
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
		fmt.Fprintf(out, "%-4s  %-32s %-6s %s  (%s)\n", r.Outcome, r.ID, r.Level, r.Promise, oneLine(r.Seen, 600))
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

// markdown has no address and no time in it, so that two runs of an unchanged server give almost the same text.
func markdown(out io.Writer, r Report) {
	levels := map[Level]int{}
	for _, check := range r.Checks {
		if check.Outcome == "FAIL" {
			levels[check.Level]++
		}
	}
	fmt.Fprintf(out, "%s (of the failed: %d must, %d should).\n\n", total(r), levels[must], levels[should])
	fmt.Fprintln(out, "| | check | level | what is promised | seen |\n|---|---|---|---|---|")
	var reasons []string
	skipped := map[string][]string{}
	for _, check := range r.Checks {
		mark := check.Outcome
		switch mark {
		case "skip":
			if skipped[check.Seen] == nil {
				reasons = append(reasons, check.Seen)
			}
			skipped[check.Seen] = append(skipped[check.Seen], "`"+check.ID+"`")
			continue
		case "FAIL":
			mark = "**FAIL**"
		}
		fmt.Fprintf(out, "| %s | `%s` | %s | %s | %s |\n", mark, check.ID, check.Level, cell(check.Promise), cell(oneLine(check.Seen, 300)))
	}
	for _, reason := range reasons {
		fmt.Fprintf(out, "\nSkipped, %s: %s.\n", reason, strings.Join(skipped[reason], ", "))
	}
}

// cell makes a text safe inside a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`, "`", "'").Replace(text)
}

// oneLine folds white space and shortens.
func oneLine(text string, most int) string {
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
