package ecosystem

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/e2e/ecosystem/tools"
)

// TestDocumented: the page names every tool, in the version that is built.
func TestDocumented(t *testing.T) {
	tests := map[string]func(*testing.T, docs.Row){}
	for _, one := range tools.All {
		tests["`"+one.Name+"`"] = func(t *testing.T, r docs.Row) {
			if want := one.Module + " " + one.Version; !strings.HasPrefix(r.Says, want+" ") {
				t.Errorf("the page says %q, and %s is built", r.Says, want)
			}
		}
	}
	docs.Hold(t, "../../docs/ecosystem.md", "## Tools", tests)
}
