package yamlfile

import (
	"bytes"
	"testing"
)

// FuzzLine: where a mistake is is a line of the file, or nowhere.
func FuzzLine(f *testing.F) {
	f.Add([]byte("jwt:\n- issuer:\n    url: x\n"), "jwt[0].issuer.url")
	f.Add([]byte("a: &a {b: 1}\nc: *a\n"), "c.b")
	f.Add([]byte("- 1\n- 2\n"), "[7]")
	f.Fuzz(func(t *testing.T, data []byte, path string) {
		if line := lineOf(data, path); line < 0 || line > 1+bytes.Count(data, []byte("\n"))+bytes.Count(data, []byte("\r"))+bytes.Count(data, []byte("\u2028"))+bytes.Count(data, []byte("\u2029"))+bytes.Count(data, []byte("\u0085")) {
			t.Errorf("line %d", line)
		}
	})
}
