package vault

import (
	"bytes"
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/berth-dev/berth/fsm"
)

// The private part of the key that signs service accounts' tokens is in the log as secrets are, and sealed as they are:
// where the configuration names secrets. In clear it is ASN.1, which begins with another byte than envelopes do.

// SealKey seals the private part of a key that is to be added.
func (v *Vault) SealKey(ctx context.Context, view *fsm.View, id string, private []byte) ([]byte, error) {
	b := v.book.Load()
	t, named := b.transformer(secrets)
	if !named {
		return private, v.refusal(view, secrets)
	}
	envelope, err := t.TransformToStorage(ctx, private, aboutKey(id))
	if err != nil {
		v.failures.Add(1)
		return nil, fmt.Errorf("the key cannot be encrypted: %w", b.because(err))
	}
	if bytes.HasPrefix(envelope, []byte(envelopePrefix)) && view.Version() < fsm.SinceSealed {
		return nil, tooOld(view.Version())
	}
	return envelope, nil
}

// OpenKey opens the private part of a key.
func (v *Vault) OpenKey(id string, private []byte) ([]byte, error) {
	plain, _, err := v.book.Load().openKey(id, private)
	if err != nil {
		v.failures.Add(1)
	}
	return plain, err
}

func (b *book) openKey(id string, private []byte) (plain []byte, stale bool, err error) {
	if !bytes.HasPrefix(private, []byte(envelopePrefix)) {
		return private, !b.writesPlain(secrets), nil
	}
	t, named := b.transformer(secrets)
	if !named {
		return nil, false, fmt.Errorf("%w with %s, and this server's encryption configuration does not name %s", ErrSealed, labelOf(private), secrets)
	}
	plain, stale, err = t.TransformFromStorage(context.Background(), private, aboutKey(id))
	if err != nil {
		return nil, false, fmt.Errorf("%w with %s, which this server's encryption configuration cannot open: %w", ErrSealed, labelOf(private), err)
	}
	return plain, stale, nil
}

// KeyCurrent says whether the key that signs now is sealed as it would be if it were added now.
func (v *Vault) KeyCurrent(view *fsm.View) bool {
	id, key, ok := view.SignsNow()
	if !ok {
		return true
	}
	_, stale, err := v.book.Load().openKey(id, key.Private)
	return err == nil && !stale
}

func aboutKey(id string) value.Context { return value.DefaultContext("berth.dev/signingkeys/" + id) }
