package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	corelisters "k8s.io/client-go/listers/core/v1"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"

	"github.com/berth-dev/berth/fsm"
)

// joining believes the tokens of machines that are to join: Kubernetes' bootstrap tokens, which
// are secrets of the system's namespace.
func joining(view func() *fsm.View, open opener) authenticator.Token {
	return bootstrap.NewTokenAuthenticator(systemSecrets{view, open})
}

// opener gives a row's object as it was before it was sealed.
type opener interface {
	Open(row *fsm.Object) (*fsm.Object, error)
}

// systemSecrets reads the secrets of the system's namespace as a lister of client-go's does.
type systemSecrets struct {
	view func() *fsm.View
	open opener
}

var _ corelisters.SecretNamespaceLister = systemSecrets{}

// Get implements SecretNamespaceLister.
func (s systemSecrets) Get(name string) (*corev1.Secret, error) {
	o, ok := s.view().Objects.Get(fsm.ObjectKey("secrets", metav1.NamespaceSystem, name))
	if !ok {
		return nil, apierrors.NewNotFound(core.Resource("secrets"), name)
	}
	opened, err := s.open.Open(o)
	if err != nil {
		return nil, err
	}
	return opened.Value.(*corev1.Secret), nil
}

// List implements SecretNamespaceLister. Nobody asks for more than one.
func (systemSecrets) List(labels.Selector) ([]*corev1.Secret, error) {
	return nil, apierrors.NewMethodNotSupported(core.Resource("secrets"), "list")
}
