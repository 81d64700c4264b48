package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/apiserver/vault"
	"github.com/berth-dev/berth/fsm"
)

// sealing is a kind whose objects go through the vault: what is proposed of it is sealed, and what is shown was
// opened. All else of the API sees neither envelope nor key.
func (g *registry) sealing(k *kind, resource string) *kind {
	if !vault.Sealable(resource) {
		return k
	}
	out := *k
	seal := func(c fsm.Command, err error) (fsm.Command, error) {
		put, ok := c.(*fsm.PutObject)
		if err != nil || !ok {
			return c, err
		}
		return put, g.vault.Seal(context.Background(), g.backend.View(), put)
	}
	out.present = func(v *fsm.View) presenter {
		present := k.present(v)
		return func(row any, into runtime.Object) error {
			opened, err := g.vault.Open(row.(*fsm.Object))
			if err != nil {
				return err
			}
			return present(opened, into)
		}
	}
	out.create = func(obj runtime.Object) (fsm.Command, error) { return seal(k.create(obj)) }
	out.update = func(obj runtime.Object, revision int64) (fsm.Command, error) { return seal(k.update(obj, revision)) }
	out.current = func(row any, obj runtime.Object) bool {
		stored := row.(*fsm.Object)
		if !g.vault.Current(stored) {
			return false
		}
		opened, err := g.vault.Open(stored)
		return err == nil && (k.current == nil || k.current(opened, obj))
	}
	return &out
}
