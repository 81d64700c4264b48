package vault

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/fsm"
)

// SigningKey is what reports call the key of service accounts' tokens.
const SigningKey = "signing key"

// inClear is what reports call the key of what has no envelope.
const inClear = "in clear"

// Holding is what is sealed with one key, of one resource.
type Holding struct {
	// Resource is as the configuration names it, or SigningKey; Key says which key it is.
	Resource, Key string
	Objects       int
	// Stale are those that would be written otherwise by now.
	Stale int
	// Problem says why this server cannot open them, or some of them; "" if it can.
	Problem string
}

// Holdings say of all that can be sealed with what it is; each envelope is opened to find out.
func (v *Vault) Holdings(view *fsm.View) []Holding {
	return v.book.Load().holdings(view, true)
}

// Stale calls f for the rows that would be written otherwise by now, until it returns false. What cannot be opened is
// not among them.
func (v *Vault) Stale(view *fsm.View, f func(row *fsm.Object) bool) {
	b := v.book.Load()
	for _, resource := range b.resources(view) {
		more := true
		view.Objects.Scan(resource+"/", func(_ string, row *fsm.Object) bool {
			if _, stale, err := b.judge(row); err == nil && stale {
				more = f(row)
			}
			return more
		})
		if !more {
			return
		}
	}
}

// resources are those of which there may be envelopes, or ought to be.
func (b *book) resources(view *fsm.View) []string {
	all := []string{secrets, configMaps}
	view.Definitions(func(d *apiextensionsv1.CustomResourceDefinition) bool {
		all = append(all, d.Name)
		return true
	})
	return all
}

// judge opens what one row has.
func (b *book) judge(row *fsm.Object) (label string, stale bool, err error) {
	envelope, sealed, err := envelopeOf(row)
	switch {
	case !sealed:
		return inClear, !b.writesPlain(row.Resource), nil
	case err != nil:
		return "a damaged envelope", false, err
	}
	_, stale, err = b.unseal(row, envelope)
	return labelOf(envelope), stale, err
}

// holdings looks at all objects, and opens all of them or one a key.
func (b *book) holdings(view *fsm.View, all bool) []Holding {
	var out []Holding
	for _, resource := range b.resources(view) {
		of := map[string]*Holding{}
		view.Objects.Scan(resource+"/", func(_ string, row *fsm.Object) bool {
			label := inClear
			if envelope, sealed, _ := envelopeOf(row); sealed { // what is damaged is told by judge
				label = labelOf(envelope)
			}
			h := of[label]
			if h == nil {
				h = &Holding{Resource: resource, Key: label}
				of[label] = h
			}
			if h.Objects++; all || h.Objects == 1 {
				_, stale, err := b.judge(row)
				h.tell(stale, err)
			}
			return true
		})
		for _, h := range of { // order does not matter: they are sorted
			if _, named := b.transformer(resource); named || h.Key != inClear {
				out = append(out, *h)
			}
		}
	}
	if id, key, ok := view.SignsNow(); ok {
		h := Holding{Resource: SigningKey, Key: inClear, Objects: 1}
		if bytes.HasPrefix(key.Private, []byte(envelopePrefix)) {
			h.Key = labelOf(key.Private)
		}
		_, stale, err := b.openKey(id, key.Private)
		h.tell(stale, err)
		if _, named := b.transformer(secrets); named || h.Key != inClear {
			out = append(out, h)
		}
	}
	slices.SortFunc(out, func(x, y Holding) int {
		return strings.Compare(x.Resource+"\x00"+x.Key, y.Resource+"\x00"+y.Key)
	})
	return out
}

func (h *Holding) tell(stale bool, err error) {
	if stale {
		h.Stale++
	}
	if err != nil && h.Problem == "" {
		h.Problem = err.Error()
	}
}

// look is what was found when the state was last looked through for what cannot be opened.
type look struct {
	book     *book
	revision int64
	at       time.Time
	locked   []Holding
}

// lookEvery bounds how often the state is looked through.
const lookEvery = 5 * time.Second

// Locked are the holdings that this server cannot open, as it was some seconds ago at most.
func (v *Vault) Locked(view *fsm.View) []Holding {
	v.mu.Lock()
	defer v.mu.Unlock()
	b := v.book.Load()
	if l := v.looked; l != nil && l.book == b && (l.revision == view.Revision() || time.Since(l.at) < lookEvery) {
		return l.locked
	}
	l := &look{book: b, revision: view.Revision(), at: time.Now()}
	for _, h := range b.holdings(view, false) {
		if h.Problem != "" {
			l.locked = append(l.locked, h)
		}
	}
	v.looked = l
	return l.locked
}

// Check is asked whether the server is ready: it is not, while it cannot open what is sealed, or does not
// reach who keeps a key.
func (v *Vault) Check(view *fsm.View) error {
	var errs []error
	for _, h := range v.Locked(view) {
		errs = append(errs, fmt.Errorf("%s (%d): %s", h.Resource, h.Objects, h.Problem))
	}
	return errors.Join(append(errs, v.book.Load().unwell())...)
}

// refusal says why a server that seals a resource with nothing does not write it: others have sealed it.
func (v *Vault) refusal(view *fsm.View, resource string) error {
	for _, h := range v.Locked(view) {
		if h.Resource == resource || resource == secrets && h.Resource == SigningKey {
			return apierrors.NewInternalError(fmt.Errorf("%s are encrypted in this cluster, and this server has no key to do it (server.encryption_config): %s",
				resource, h.Problem))
		}
	}
	return nil
}
