package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	definitionName  = "things.sim.berth.dev"
	thingsPath      = "/apis/sim.berth.dev/v1/namespaces/default/things"
	definition      = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"things.sim.berth.dev"},"spec":{` +
		`"group":"sim.berth.dev","scope":"Namespaced","names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},` +
		`"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"size":{"type":"integer","minimum":1}}}}}]}}`
)

// define makes a kind of its own, objects of it, and takes the kind away with all of them, again and
// again: what was made is found, what the schema refuses is not, and of what was there before nothing is left.
func (u *user) define(ctx context.Context) {
	round, unsure := 0, map[string]bool{} // what was asked for and not answered may be made late
	u.every(ctx, 10*time.Second, func() {
		round++
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			return c.RESTClient().Post().AbsPath(definitionsPath).SetHeader("Content-Type", "application/json").Body([]byte(definition)).Do(ctx).Error()
		})
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error { // until it is served
			names, err := things(ctx, c)
			for _, name := range names {
				if !unsure[name] {
					u.world.checker.contradicted("kind %s has just been made, and there is %s", definitionName, name)
				}
			}
			return err
		})
		var made []string
		for i := range 3 + u.rand.IntN(5) {
			name := fmt.Sprintf("thing-%d-%d", round, i)
			thing := fmt.Appendf(nil, `{"apiVersion":"sim.berth.dev/v1","kind":"Thing","metadata":{"name":%q},"size":%d}`, name, i)
			err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				return c.RESTClient().Post().AbsPath(thingsPath).SetHeader("Content-Type", "application/json").MaxRetries(0).Body(thing).Do(ctx).Error()
			})
			switch {
			case err == nil && i == 0:
				u.world.checker.violated("%s is made with size 0, and its schema demands 1", name)
			case err == nil:
				made = append(made, name)
			default:
				unsure[name] = true
			}
			pause(ctx, time.Duration(u.rand.IntN(1000))*time.Millisecond)
		}
		_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			names, err := things(ctx, c)
			for _, name := range made {
				if err == nil && !slices.Contains(names, name) {
					u.world.checker.contradicted("%s was made, and is not among %v", name, names)
				}
			}
			return err
		})
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error { // until it is gone
			raw, err := c.RESTClient().Get().AbsPath(definitionsPath, definitionName).SetHeader("Accept", "application/json").DoRaw(ctx)
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return err
			}
			var have struct{ Metadata struct{ UID types.UID } }
			if err := json.Unmarshal(raw, &have); err != nil {
				return err
			}
			// This one, and no later one.
			this := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"DeleteOptions","preconditions":{"uid":%q}}`, have.Metadata.UID)
			err = c.RESTClient().Delete().AbsPath(definitionsPath, definitionName).SetHeader("Content-Type", "application/json").Body(this).Do(ctx).Error()
			return errors.Join(err, errors.New("it is on its way"))
		})
	})
}

// things are the names of the objects of that kind.
func things(ctx context.Context, c *kubernetes.Clientset) (names []string, err error) {
	raw, err := c.RESTClient().Get().AbsPath(thingsPath).SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
		}
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	for _, o := range list.Items {
		names = append(names, o.Metadata.Name)
	}
	return names, nil
}
