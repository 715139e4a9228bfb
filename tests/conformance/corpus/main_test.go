package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The goldens that other tests read are what this program writes, with the libraries of this go.mod.
func TestGoldensAreCurrent(t *testing.T) {
	const goldens = "../../it/golden/corpus"
	fresh := t.TempDir()
	if err := writeAll(fresh); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"selectors.json", "quantities.json"} {
		want, err := os.ReadFile(filepath.Join(fresh, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(goldens, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("%s/%s is not what the corpus gives: go run ./corpus ../it/golden/corpus", goldens, name)
		}
	}
}
