package apiserver

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
)

// pages is below upstream's transport of a proxy. That reads each page of HTML into memory, however long it is, unpacks it, and
// writes its links anew; what calls itself a page in other letters it hands on as it is, as browsers do not. Here are
// so spelt those that are long, and with never all of them.
type pages struct {
	http.RoundTripper
	never bool
}

const (
	// pageBytes bounds a page whose links are written anew, unpackedPage what it is when it is unpacked.
	pageBytes, unpackedPage = 1 << 20, 4 << 20

	page, pageInOtherLetters = "text/html", "Text/HTML"
)

// WrappedRoundTripper implements upstream's net.RoundTripperWrapper.
func (p pages) WrappedRoundTripper() http.RoundTripper { return p.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p pages) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := p.RoundTripper.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	said := resp.Header.Get("Content-Type")
	if kind, rest, _ := strings.Cut(said, ";"); strings.TrimSpace(kind) != page || !p.never && isShort(resp) {
		return resp, nil
	} else if said = pageInOtherLetters; rest != "" {
		said += ";" + rest
	}
	resp.Header.Set("Content-Type", said)
	return resp, nil
}

// isShort reads the beginning of a page, and says whether that is all of it. The page is as it was.
func isShort(resp *http.Response) bool {
	if resp.ContentLength > pageBytes {
		return false
	}
	start, err := io.ReadAll(io.LimitReader(resp.Body, pageBytes+1))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failing{err}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), rest), resp.Body}
	return err == nil && len(start) <= pageBytes && unpacks(start, resp.Header.Get("Content-Encoding"))
}

// unpacks says whether what upstream unpacks is bounded, too. What is wrong with it is not said here.
func unpacks(packed []byte, encoding string) bool {
	var unpacked io.Reader
	switch encoding {
	case "gzip":
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return false
		}
		unpacked = r
	case "deflate":
		unpacked = flate.NewReader(bytes.NewReader(packed))
	case "":
		return true
	default: // upstream does not know it either, and hands nothing on
		return false
	}
	n, err := io.Copy(io.Discard, io.LimitReader(unpacked, unpackedPage+1))
	return err == nil && n <= unpackedPage
}

// failing is a body that could not be read further.
type failing struct{ err error }

// Read implements io.Reader.
func (f failing) Read([]byte) (int, error) { return 0, f.err }
