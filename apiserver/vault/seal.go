package vault

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

// annotation of a row holds the envelope, in base64. No object of the API can have it: a name with two slashes is none.
const annotation = "berth.dev/sealed/v1"

// envelopePrefix is what every envelope of upstream's begins with.
const envelopePrefix = "k8s:enc:"

// rowBytes is about what an object takes in memory beyond its bytes.
const rowBytes = 2 << 10

// ErrSealed: this server has not the key of an envelope.
var ErrSealed = errors.New("it is encrypted")

// Seal puts an envelope in the place of what an object holds, if the configuration names its kind. What the
// envelope of the object's row holds already goes into no other one, so a write without change stays one.
func (v *Vault) Seal(ctx context.Context, view *fsm.View, c *fsm.PutObject) error {
	if !Sealable(c.Resource) {
		return nil
	}
	kind, _ := fsm.KindOf(c.Resource)
	object := kind.New()
	if err := object.Unmarshal(c.Raw); err != nil {
		return fmt.Errorf("seal an object of %s: %w", c.Resource, err)
	}
	if _, taken := object.GetAnnotations()[annotation]; taken {
		return apierrors.NewBadRequest(fmt.Sprintf("metadata.annotations: %q is Berth's own", annotation))
	}
	b := v.book.Load()
	t, named := b.transformer(c.Resource)
	if !named {
		// Where others have sealed the kind, a server that cannot does not write in clear beside them.
		return v.refusal(view, c.Resource)
	}
	plain, err := contents(object)
	if err != nil {
		return err
	}
	about := about(c.Resource, object)
	envelope := b.kept(view, c.Resource, object, plain)
	if envelope == nil {
		if envelope, err = t.TransformToStorage(ctx, plain, about); err != nil {
			v.failures.Add(1)
			return apierrors.NewInternalError(fmt.Errorf("%s %q cannot be encrypted: %w", c.Resource, object.GetName(), b.because(err)))
		}
	}
	if !bytes.HasPrefix(envelope, []byte(envelopePrefix)) {
		return nil // the configuration says that it is written in clear
	}
	if version := view.Version(); version < fsm.SinceSealed {
		return tooOld(version)
	}
	c.Raw, err = shell(kind, object, envelope)
	return err
}

func tooOld(version int) error {
	return apierrors.NewBadRequest(fmt.Sprintf(
		"encryption needs every server at log version %d, and the log goes by %d: upgrade all servers first", fsm.SinceSealed, version))
}

// kept is the envelope that the object's row has, if it holds the same and is of the key that is written with.
func (b *book) kept(view *fsm.View, resource string, object codec.Object, plain []byte) []byte {
	row, ok := view.Objects.Get(fsm.ObjectKey(resource, object.GetNamespace(), object.GetName()))
	if !ok || row.Value.GetUID() != object.GetUID() {
		return nil
	}
	envelope, sealed, err := envelopeOf(row)
	if err != nil || !sealed {
		return nil
	}
	if was, stale, err := b.unseal(row, envelope); err != nil || stale || !bytes.Equal(was, plain) {
		return nil
	}
	return envelope
}

// contents are the bytes of what an envelope holds: all of an object but the metadata that stays in clear.
func contents(object codec.Object) ([]byte, error) {
	m := metaOf(object)
	open := *m
	*m = metav1.ObjectMeta{Annotations: open.Annotations, ManagedFields: open.ManagedFields}
	plain, err := object.Marshal()
	*m = open
	return plain, err
}

// shell is the object as it is stored, with its envelope.
func shell(kind fsm.ObjectKind, object codec.Object, envelope []byte) ([]byte, error) {
	out := kind.New()
	m := metaOf(out)
	*m = *metaOf(object)
	m.ManagedFields = nil
	m.Annotations = map[string]string{annotation: base64.StdEncoding.EncodeToString(envelope)}
	if s, ok := object.(*corev1.Secret); ok {
		out.(*corev1.Secret).Type = s.Type
	}
	return out.Marshal()
}

// Open gives a row's object as it was before it was sealed; the row itself if it never was. It shares memory
// with the row and with what others were given, and must not be changed.
func (v *Vault) Open(row *fsm.Object) (*fsm.Object, error) {
	if !IsSealed(row) {
		return row, nil
	}
	b := v.book.Load()
	if object, ok := b.opened.get(row); ok {
		return object, nil
	}
	object, err := b.open(row)
	if err != nil {
		v.failures.Add(1)
		return nil, apierrors.NewInternalError(fmt.Errorf("%s %s: %w", row.Resource, nameOf(row.Value), err))
	}
	b.opened.put(row, object, row.Value.Size()+object.Value.Size()+2*rowBytes)
	return object, nil
}

func (b *book) open(row *fsm.Object) (*fsm.Object, error) {
	envelope, _, err := envelopeOf(row)
	if err != nil {
		return nil, err
	}
	plain, _, err := b.unseal(row, envelope)
	if err != nil {
		return nil, err
	}
	kind, ok := fsm.KindOf(row.Resource)
	if !ok {
		return nil, fmt.Errorf("nobody knows the kind")
	}
	out := kind.New()
	if err := out.Unmarshal(plain); err != nil {
		return nil, fmt.Errorf("what the envelope holds: %w", err)
	}
	m := metaOf(out)
	hidden := *m
	*m = *metaOf(row.Value)
	m.Annotations, m.ManagedFields = hidden.Annotations, hidden.ManagedFields
	return &fsm.Object{Resource: row.Resource, Value: out}, nil
}

// unseal opens an envelope, and says whether another key, or none, would be written with by now.
func (b *book) unseal(row *fsm.Object, envelope []byte) (plain []byte, stale bool, err error) {
	t, ok := b.transformer(row.Resource)
	if !ok {
		return nil, false, fmt.Errorf("%w with %s, and this server's encryption configuration does not name %s", ErrSealed, labelOf(envelope), row.Resource)
	}
	plain, stale, err = t.TransformFromStorage(context.Background(), envelope, about(row.Resource, row.Value))
	if err != nil {
		return nil, false, fmt.Errorf("%w with %s, which this server's encryption configuration cannot open: %w", ErrSealed, labelOf(envelope), err)
	}
	return plain, stale, nil
}

// Current says whether a row is sealed as it would be if it were written now.
func (v *Vault) Current(row *fsm.Object) bool {
	if !Sealable(row.Resource) {
		return true
	}
	b := v.book.Load()
	envelope, sealed, err := envelopeOf(row)
	if err != nil {
		return false
	}
	if !sealed {
		return b.writesPlain(row.Resource)
	}
	_, stale, err := b.unseal(row, envelope)
	return err == nil && !stale
}

// writesPlain: the configuration does not name the resource, or says that it is written in clear.
func (b *book) writesPlain(resource string) bool {
	t, named := b.transformer(resource)
	if !named {
		return true
	}
	_, stale, err := t.TransformFromStorage(context.Background(), []byte("in clear"), value.DefaultContext(nil))
	return err == nil && !stale
}

// IsSealed says whether a row has an envelope.
func IsSealed(row *fsm.Object) bool {
	_, ok := row.Value.GetAnnotations()[annotation]
	return ok
}

func envelopeOf(row *fsm.Object) (envelope []byte, sealed bool, err error) {
	text, ok := row.Value.GetAnnotations()[annotation]
	if !ok {
		return nil, false, nil
	}
	if envelope, err = base64.StdEncoding.DecodeString(text); err != nil {
		return nil, true, fmt.Errorf("%w, and its envelope is damaged: %w", ErrSealed, err)
	}
	return envelope, true, nil
}

// about binds an envelope to its object: it opens for no other one.
func about(resource string, o codec.Object) value.Context {
	return value.DefaultContext("berth.dev/" + fsm.ObjectKey(resource, o.GetNamespace(), o.GetName()) + "/" + string(o.GetUID()))
}

// labelOf names the key of an envelope, as its beginning does: the provider, its version and the key.
func labelOf(envelope []byte) string {
	rest, ok := bytes.CutPrefix(envelope, []byte(envelopePrefix))
	parts := strings.SplitN(string(rest[:min(len(rest), 512)]), ":", 4)
	if !ok || len(parts) < 4 {
		return "a key without a name"
	}
	if parts[0] == "kms" {
		return fmt.Sprintf("the KMS provider %q", parts[2])
	}
	return fmt.Sprintf("the %s key %q", parts[0], parts[2])
}

func metaOf(o codec.Object) *metav1.ObjectMeta {
	return o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
}

func nameOf(o codec.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// Rewrite is the command that puts a row's object into the envelope that it would be in if it were written now.
func (v *Vault) Rewrite(ctx context.Context, view *fsm.View, row *fsm.Object) (*fsm.PutObject, error) {
	opened, err := v.Open(row)
	if err != nil {
		return nil, err
	}
	c := &fsm.PutObject{Resource: row.Resource}
	if c.Revision, err = strconv.ParseInt(row.Value.GetResourceVersion(), 10, 64); err != nil {
		return nil, fmt.Errorf("the revision of %s %s: %w", row.Resource, nameOf(row.Value), err)
	}
	if c.Raw, err = opened.Value.Marshal(); err != nil {
		return nil, err
	}
	return c, v.Seal(ctx, view, c)
}
