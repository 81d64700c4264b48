package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

// What lists may hold while they are answered, for one client and for all. A
// client may always have one; of those that are written row by row and hold no
// more than rows that the state may have replaced, a large one takes a client's
// share and no more.
const (
	maxClientAnswerBytes = 128 << 20
	maxAnswerBytes       = 512 << 20
)

// form is what a list costs in the form that a client asked for.
type form struct {
	name string
	// whole: the form is made of the whole list at once.
	whole bool
	// perByte and perRow are how many bytes are held for each byte of a row, as
	// it is stored, and for each row.
	perByte, perRow int64
}

// The figures are of BenchmarkLists, rounded up.
var (
	rowByRow  = form{name: "JSON or protobuf", perByte: 1, perRow: 64}
	converted = form{name: "a table or metadata", whole: true, perByte: 3, perRow: 2 << 10}
	asYAML    = form{name: "YAML", whole: true, perByte: 40, perRow: 2 << 10}
	deleted   = form{name: "what is to be deleted", whole: true, perByte: 1, perRow: 2 << 10}
	// custom objects are made of maps, and never written row by row.
	custom = form{name: "custom objects", whole: true, perByte: 12, perRow: 4 << 10}
)

func formOf(r *http.Request) form {
	accept := strings.Join(r.Header.Values("Accept"), ",")
	switch {
	case r.Method != http.MethodGet:
		return deleted
	case strings.Contains(accept, "as="):
		return converted
	case strings.Contains(accept, "yaml"), strings.Contains(accept, "cbor"):
		return asYAML
	}
	return rowByRow
}

// answer is what a request's answer holds, and whose it is.
type answer struct {
	form
	share  *fairShare
	client string
	held   int64
	turn   *turn // nil: it waits for nobody
}

type answerKey struct{}

// answerFrom is the answer of a request; nil if nobody asked over HTTP.
func answerFrom(ctx context.Context) *answer {
	a, _ := ctx.Value(answerKey{}).(*answer)
	return a
}

// inTurn is called before each row that is looked at or shown.
func (a *answer) inTurn(ctx context.Context) error {
	if a == nil {
		return nil
	}
	return a.turn.look(ctx)
}

// goOn is called between two pieces of what is long whatever comes of it.
func (a *answer) goOn(ctx context.Context) error {
	if a == nil {
		return ctx.Err()
	}
	return a.turn.goOn(ctx)
}

// charge takes what was computed without a turn since a moment from the user's account; the zero moment: nothing was.
func (a *answer) charge(since time.Time) {
	if a != nil && a.turn != nil && a.turn.paced && !a.turn.held && !since.IsZero() {
		a.turn.all.pace.charge(a.turn.user, time.Since(since))
	}
}

// outOfTurn is called before somebody is waited for.
func (a *answer) outOfTurn() {
	if a != nil {
		a.turn.pause()
	}
}

// encodedInTurn is an object that is encoded in a turn, by another goroutine than that which shows it.
func (a *answer) encodedInTurn(ctx context.Context, obj runtime.Object) runtime.Object {
	if a == nil || a.turn == nil || !a.turn.taken {
		return obj
	}
	return &encodedOnce{object: obj, turn: func(encode func()) error { return a.turn.do(ctx, encode) }}
}

// take takes the rows of a list into account until the request ends, or refuses
// them.
func (a *answer) take(rows []any) error {
	if a == nil {
		return nil
	}
	var bytes int64
	form := a.form
	if len(rows) > 0 && isCustom(rows[0]) && form.perByte < custom.perByte {
		form = custom
	}
	for _, row := range rows {
		bytes += form.perRow + form.perByte*rowBytes(row)
	}
	switch {
	case !form.whole:
		bytes = min(bytes, maxClientAnswerBytes)
	case bytes > maxAnswerBytes:
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
			"%d objects as %s would take %d bytes of memory, and may take %d: ask for them in parts, with limit=500", len(rows), form.name, bytes, maxAnswerBytes))
	}
	if why := a.share.hold(a.client, bytes); why != "" {
		return apierrors.NewTooManyRequests(why, retryAfterSeconds)
	}
	a.held += bytes
	return nil
}

func isCustom(row any) bool {
	o, ok := row.(*fsm.Object)
	if !ok {
		return false
	}
	_, ok = o.Value.(*codec.CustomObject)
	return ok
}

// rowBytes is about how large a row is in protobuf.
func rowBytes(row any) int64 {
	switch r := row.(type) {
	case interface{ Size() int }:
		return int64(r.Size())
	case *fsm.Object:
		return int64(r.Value.Size())
	case *fsm.QueueEntry:
		if r.Diagnosis == nil {
			return 1 << 9
		}
		return 1<<9 + int64(2*len(r.Diagnosis.Message))
	}
	b, err := json.Marshal(row)
	if err != nil {
		return 1 << 10
	}
	return int64(len(b))
}

// hold takes bytes of an answer into account, or says why not.
func (f *fairShare) hold(client string, bytes int64) (why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.clients[client]
	switch {
	case c.answers > 0 && c.answers+bytes > maxClientAnswerBytes:
		return fmt.Sprintf("user %q has lists under way that hold %d bytes, and may hold %d", client, c.answers, maxClientAnswerBytes)
	case f.answers+bytes > maxAnswerBytes:
		return fmt.Sprintf("lists under way hold %d bytes, and may hold %d", f.answers, maxAnswerBytes)
	}
	c.answers += bytes
	f.answers += bytes
	return ""
}

// letGo ends an answer.
func (f *fairShare) letGo(client string, bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clients[client].answers -= bytes
	f.answers -= bytes
}
