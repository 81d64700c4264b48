package vault

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/apiserver/yamlfile"
)

// book is one reading of the file: the keys, by what they are for.
type book struct {
	hash   string
	keys   map[schema.GroupResource]value.Transformer
	health []healthz.HealthChecker
	opened *cache
	grace  time.Duration
	close  context.CancelFunc
}

// read believes all of a file, or nothing.
func read(file, server string) (*book, error) {
	if err := check(file); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, file, true, server)
	if err != nil {
		end()
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	b := &book{
		hash: loaded.EncryptionFileContentHash, keys: loaded.Transformers, health: loaded.HealthChecks,
		opened: newCache(), grace: loaded.KMSCloseGracePeriod, close: end,
	}
	for resource := range b.keys { // order does not matter: the first that is wrong is told
		if problem := unsealable(resource); problem != "" { // it was written anew between the two readings
			end()
			return nil, fmt.Errorf("%s: %s", file, problem)
		}
	}
	return b, nil
}

// check says of each mistake in a file in which line it is.
func check(file string) error {
	known := runtime.NewScheme()
	install.Install(known)
	o, data, err := yamlfile.Read(file, known)
	if err != nil {
		return err
	}
	said, ok := o.(*apiserver.EncryptionConfiguration)
	if !ok {
		return fmt.Errorf("%s: it is %s, not an EncryptionConfiguration", file, o.GetObjectKind().GroupVersionKind().Kind)
	}
	problems := validation.ValidateEncryptionConfiguration(said, true)
	for i, r := range said.Resources {
		for j, name := range r.Resources {
			if problem := unsealable(schema.ParseGroupResource(name)); problem != "" {
				problems = append(problems, field.Invalid(field.NewPath("resources").Index(i).Child("resources").Index(j), name, problem))
			}
		}
	}
	var errs []error
	for _, p := range problems {
		p.BadValue = withoutKeys(p)
		errs = append(errs, yamlfile.Placed(file, data, p))
	}
	return errors.Join(errs...)
}

// withoutKeys is what may be told of a value that is wrong: what stands with a key may be the key.
func withoutKeys(p *field.Error) any {
	if strings.Contains(p.Field, "keys") || strings.Contains(p.Field, "secret") {
		return field.OmitValueType{}
	}
	return p.BadValue
}

// unsealable says why a resource cannot be sealed; "" if it can.
func unsealable(r schema.GroupResource) string {
	const which = `"secrets", "configmaps" and custom resources ("widgets.example.com", "*.example.com") can be encrypted`
	switch {
	case r.Group == "" && (r.Resource == secrets || r.Resource == configMaps):
		return ""
	case r.Group == "" && r.Resource == "*" || r.Group == "*":
		return "it stands for kinds that the scheduler's state machine reads: " + which
	case !strings.Contains(r.Group, ".") || r.Group == berthv1.GroupName || scheme.Scheme.IsGroupRegistered(r.Group) || builtIn[r.Group]:
		return "the servers read it to decide by it: " + which
	}
	return ""
}

// builtIn are the groups that are not in client-go's scheme and yet nobody's own.
var builtIn = map[string]bool{"apiextensions.k8s.io": true, "apiregistration.k8s.io": true, "metrics.k8s.io": true}

// transformer is what seals and opens a resource, if the file names it.
func (b *book) transformer(resource string) (value.Transformer, bool) {
	r := schema.ParseGroupResource(resource)
	if t, ok := b.keys[r]; ok {
		return t, true
	}
	t, ok := b.keys[schema.GroupResource{Group: r.Group, Resource: "*"}]
	return t, ok
}

// errNoKMS does not say where the KMS is, for it is told to whoever wrote something. The server's log does.
var errNoKMS = errors.New("a KMS of this server's encryption configuration does not answer as it should")

// because adds to why something was not sealed that a KMS keeps back what it would be sealed with. Upstream's error says only
// that there is none.
func (b *book) because(err error) error {
	if b.unwell() != nil {
		return fmt.Errorf("%w: %w", errNoKMS, err)
	}
	return err
}

// unwell says which KMS do not answer as they should; nil: there is none.
func (b *book) unwell() error {
	var errs []error
	for _, check := range b.health {
		if err := check.Check(&http.Request{}); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", check.Name(), err))
		}
	}
	return errors.Join(errs...)
}
