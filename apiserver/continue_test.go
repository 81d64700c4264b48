package apiserver

import (
	"encoding/base64"
	"testing"

	"pgregory.net/rapid"
)

// TestContinueToken: what one server gives another understands, and nothing
// that a client makes up does harm.
func TestContinueToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := continueToken{
			Version: continueVersion, Revision: rapid.Int64Min(1).Draw(t, "revision"),
			After: rapid.StringN(1, 50, -1).Draw(t, "after"), Remaining: rapid.Int64Min(-1).Draw(t, "remaining"),
		}
		got, err := decodeContinue(c.encode())
		if err != nil || got != c {
			t.Fatalf("%+v came back as %+v, %v", c, got, err)
		}
		made := rapid.SliceOf(rapid.Byte()).Draw(t, "made up")
		if got, err := decodeContinue(base64.RawURLEncoding.EncodeToString(made)); err == nil && got.After == "" {
			t.Fatalf("%q is taken for a token", made)
		}
	})
	for _, s := range []string{"", "nonsense", "e30", continueToken{After: "x"}.encode(), continueToken{Revision: -2, After: "x"}.encode()} {
		_, err := decodeContinue(s)
		wantStatus(t, err, 400, "invalid continue token")
	}
}
