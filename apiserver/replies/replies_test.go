package replies

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

type says string

func (s says) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{Body: io.NopCloser(strings.NewReader(string(s)))}, nil
}

// TestAnAnswerEnds: one may have as many bytes as are said, and not one more, however it is read.
func TestAnAnswerEnds(t *testing.T) {
	for _, tt := range []struct {
		times  int64
		asked  string
		answer int
		good   bool
	}{
		{0, "", 10, true},
		{0, "", 11, false},
		{0, "asked", 11, false},
		{2, "asked", 20, true},
		{2, "asked", 21, false},
	} {
		r, err := http.NewRequest(http.MethodPost, "http://other", strings.NewReader(tt.asked))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := AtMostFor(10, tt.times)(says(strings.Repeat("x", tt.answer))).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(answer.Body)
		if tt.good != (err == nil) || tt.good != (len(got) == tt.answer) || err != nil && !errors.Is(err, ErrTooLong) {
			t.Errorf("%+v: %d bytes, %v", tt, len(got), err)
		}
		if _, again := answer.Body.Read(make([]byte, 1)); !tt.good && !errors.Is(again, ErrTooLong) {
			t.Errorf("%+v: it goes on: %v", tt, again)
		}
	}
}
