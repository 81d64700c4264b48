package docs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTables(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	const text = "# A\n\nWords.\n\n| what | most |\n|---|---|\n| one thing | 1,024; 4 KiB and 2⁴⁸ |\n| another, of x | 3 MiB | told |\n\n" +
		"## B\n\n| what | most |\n|---|---|\n| a third | 7 |\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tried := map[string][]int64{}
	try := func(t *testing.T, r Row) { tried[r.What] = r.Numbers(t, 1) }
	Hold(t, page, "# A", map[string]func(*testing.T, Row){"one thing": try, "another, of x": try})
	Hold(t, page, "## B", map[string]func(*testing.T, Row){"a third": try})
	for what, want := range map[string][]int64{"one thing": {1024, 4096, 1 << 48}, "another, of x": {3 << 20}, "a third": {7}} {
		if !slices.Equal(tried[what], want) {
			t.Errorf("%s: %v, want %v", what, tried[what], want)
		}
	}
	if rows := table(t, page, "# A"); len(rows) != 2 || rows[1].Says != "3 MiB | told" {
		t.Errorf("%q", rows)
	}
}
