package archtest

import (
	"go/build"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// maxLines is where a file asks to be two: nobody reads a longer one whole.
const maxLines = 600

func TestFilesAreShort(t *testing.T) {
	for _, f := range load(t).files {
		if f.Lines > maxLines && !f.Generated {
			t.Errorf("%s has %d lines, the limit is %d: a reader should be able to take in a file; split it by what it is about", f.Path, f.Lines, maxLines)
		}
	}
}

// empty names say nothing of what is inside, so everything ends up there.
var emptyNames = []string{"base", "common", "core", "helper", "helpers", "internal", "lib", "manager", "misc", "shared", "structs", "types", "util", "utils"}

// named like the standard library's, with the reason.
var knownNames = map[string]string{
	"worker/runtime": "what runs containers has this name everywhere",
}

func TestPackageNames(t *testing.T) {
	for _, f := range load(t).files {
		name := f.AST.Name.Name
		if slices.Contains(emptyNames, name) {
			t.Errorf("%s: a package named %s says nothing of what is in it; name it after a noun of the field", f.Path, name)
		}
		std, err := os.Stat(filepath.Join(build.Default.GOROOT, "src", name))
		if err == nil && std.IsDir() && name != "main" && name != "cmd" && knownNames[f.Dir] == "" {
			t.Errorf("%s: package %s is named like one of the standard library's: whoever reads %s.X has to look up which", f.Path, name, name)
		}
	}
}

func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	documented, at := map[string]bool{}, map[string]string{}
	for _, f := range load(t).files {
		if f.Test {
			continue
		}
		at[f.Dir] = f.Path
		documented[f.Dir] = documented[f.Dir] || f.AST.Doc != nil && len(f.AST.Doc.Text()) > 40
	}
	for dir, p := range at {
		if !documented[dir] {
			t.Errorf("%s: package %s has no comment that says what it is for and what it must never do", p, dir)
		}
	}
}
