// Package docs reads the documents that are beside it, for tests that hold what they
// promise. Nothing but tests needs it.
package docs

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Row is a row of a table.
type Row struct {
	What string // the first cell
	Says string // the others
}

// Hold runs a test for each row of the table in a section of a page: the text of its
// heading, as it is there. A row without a test fails, as a test without a row.
func Hold(t *testing.T, page, section string, tests map[string]func(t *testing.T, r Row)) {
	t.Helper()
	rows := table(t, page, section)
	seen := map[string]bool{}
	for _, r := range rows {
		seen[r.What] = true
		test, ok := tests[r.What]
		if !ok {
			t.Errorf("%s: nothing tries the row %q", page, r.What)
			continue
		}
		t.Run(r.What, func(t *testing.T) { test(t, r) })
	}
	for what := range tests {
		if !seen[what] {
			t.Errorf("%s: there is no row %q", page, what)
		}
	}
}

// table is the first table of a section.
func table(t *testing.T, page, section string) (rows []Row) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, below, found := strings.Cut("\n"+string(b), "\n"+section+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, section)
	}
	for line := range strings.Lines(below) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || line == "" && len(rows) > 0 {
			break
		}
		if cells, ok := strings.CutPrefix(line, "| "); ok {
			what, says, _ := strings.Cut(strings.TrimSuffix(cells, " |"), " | ")
			rows = append(rows, Row{what, says})
		}
	}
	if len(rows) < 2 {
		t.Fatalf("%s has no table below %q", page, section)
	}
	return rows[1:] // the first is the table's head
}

// Numbers are those that a row says, in their order, like 262,144, 4 KiB or 2⁴⁸. It
// fails if there are fewer than asked for.
func (r Row) Numbers(t *testing.T, atLeast int) []int64 {
	t.Helper()
	var out []int64
	for _, m := range regexp.MustCompile(`(2⁴⁸|\d[\d,]*\d|\d)(?: ([KMG])iB)?`).FindAllStringSubmatch(r.Says, -1) {
		n := int64(1 << 48)
		if m[1] != "2⁴⁸" {
			var err error
			if n, err = strconv.ParseInt(strings.ReplaceAll(m[1], ",", ""), 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		out = append(out, n<<map[string]int{"K": 10, "M": 20, "G": 30}[m[2]])
	}
	if len(out) < atLeast {
		t.Fatalf("%q says %d numbers, want %d", r.Says, len(out), atLeast)
	}
	return out
}
