package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/model"
)

// systemUser is who proposes what nobody asked for.
const systemUser = "system:berth"

// controlInterval is how often the controllers look at the state.
const controlInterval = time.Second

// lead runs the leader's loops until ctx ends with its leadership.
func (s *Server) lead(ctx context.Context) {
	began := time.Now()
	s.renewals.clear()
	vigil := clock.NewVigil(s.node.Clock(), sleepBound)
	for {
		err := s.furnish(ctx)
		if err == nil {
			break
		}
		if ctx.Err() == nil {
			s.log.Error("the cluster's own objects could not be made; trying again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(controlInterval):
		}
	}
	s.log.Info("leading", "index", s.state.View().Index(), "revision", s.state.View().Revision(), "after", time.Since(began))
	var loops sync.WaitGroup
	keep := func(name string, loop func(ctx context.Context)) {
		loops.Go(func() { s.guard.Keep(ctx, name, loop) })
	}
	keep("scheduler", s.schedule)
	keep("vigil", func(ctx context.Context) { s.keepVigil(ctx, vigil) })
	keep("controllers", func(ctx context.Context) { s.controlLoop(ctx, vigil) })
	keep("workloads", s.keepWorkloads)
	keep("kubernetes", s.keepKubernetes)
	keep("signing key", s.keepSigningKey)
	keep("own services", s.keepOwnServices)
	keep("roles", s.keepRoles)
	keep("membership", s.membershipLoop)
	keep("compare", s.compareLoop)
	loops.Wait()
}

// furnish makes what every cluster has: the system classes (PC3), the system
// namespaces, the API's service, the scheduler configuration, and roles.
func (s *Server) furnish(ctx context.Context) error {
	v := s.state.View()
	_, founded := v.Namespaces.Get(corev1.NamespaceDefault)
	if !founded {
		s.hearVersions(ctx)
	}
	var ps []fsm.Proposal
	add := func(c fsm.Command) {
		ps = append(ps, fsm.Proposal{User: systemUser, Groups: systemGroups, Command: c})
	}
	// Before the namespaces: by those a cluster is known that was founded before there were roles.
	own, err := s.ownRoles(ctx, v, !founded)
	if err != nil {
		return err
	}
	for _, c := range own {
		add(c)
	}
	if _, ok := v.Config.Get(s.config.Scheduler.Name); !ok {
		raw, err := json.Marshal(s.config.Scheduler)
		if err != nil {
			return err
		}
		add(&fsm.ConfigureScheduler{JSON: raw, OnlyIfAbsent: true})
	}
	meta := s.finishOwn()
	for _, class := range model.SystemClasses() {
		if _, ok := v.PriorityClasses.Get(class.Name); !ok {
			meta(&class.ObjectMeta)
			add(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: class}})
		}
	}
	for _, name := range fsm.SystemNamespaces() {
		if _, ok := v.Namespaces.Get(name); !ok {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
			meta(&ns.ObjectMeta)
			if name == metav1.NamespaceSystem && len(own) > 0 {
				ns.Annotations = map[string]string{model.RolesAnnotation: "true"}
			}
			add(&fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Create: true, RootCA: s.rootCA})
		}
	}
	more, err := s.ownServices(v, metav1.NewTime(s.node.Clock().Time()))
	if err != nil {
		return err
	}
	for _, c := range more {
		add(c)
	}
	return s.proposeOwn(ctx, ps)
}

// proposeOwn proposes what makes the cluster's own objects.
func (s *Server) proposeOwn(ctx context.Context, ps []fsm.Proposal) error {
	if len(ps) == 0 {
		return nil
	}
	rs, err := s.Propose(ctx, ps...)
	for i, r := range rs {
		if r.Refused() && r.Code != http.StatusConflict { // another leader has made it meanwhile
			s.log.Warn("one of the cluster's own objects was refused", "command", fmt.Sprintf("%T", ps[i].Command), "reason", r.Message) // #nosec G602 -- there is a result for each proposal
		}
	}
	return err
}

// controllers are the reconcilers, with what they remember of one leadership.
type controllers struct {
	lifecycle  controller.NodeLifecycle
	taints     controller.TaintEviction
	namespaces controller.Namespaces
	gc         controller.PodGC
	furnishing controller.Furnishing
}

// reconcile asks all of them what they want now. One that panics wants nothing,
// and the others are asked all the same.
func (c *controllers) reconcile(p *panics, v *fsm.View, beats controller.Heartbeats, since, now int64) []fsm.Command {
	var commands []fsm.Command
	ask := func(name string, want func() []fsm.Command) {
		p.try("controllers/"+name, func() { commands = append(commands, want()...) })
	}
	ask("nominations", func() []fsm.Command { return controller.Nominations(v, now) })
	ask("nodes", func() []fsm.Command { return c.lifecycle.Reconcile(v, beats, since, now) })
	ask("taints", func() []fsm.Command { return c.taints.Reconcile(v, c.lifecycle.Held(now), now) })
	ask("pressure", func() []fsm.Command { return controller.PressureTaints(v) })
	ask("namespaces", func() []fsm.Command { return c.namespaces.Reconcile(v, now) })
	ask("definitions", func() []fsm.Command { return controller.Definitions(v, now) })
	ask("pods", func() []fsm.Command { return c.gc.Reconcile(v, now) })
	ask("volumes", func() []fsm.Command { return controller.LocalVolumes(v) })
	ask("snapshots", func() []fsm.Command { return controller.StagedSnapshots(v, now) })
	ask("furnishing", func() []fsm.Command { return c.furnishing.Reconcile(v, now) })
	ask("events", func() []fsm.Command { return controller.Events(v, now) })
	return commands
}

// controlLoop runs the controllers and proposes what they want. When that was
// a batch, and it was done, they are asked again at once.
func (s *Server) controlLoop(ctx context.Context, vigil *clock.Vigil) {
	c := &controllers{
		gc: controller.PodGC{Threshold: controller.TerminatedPodThreshold}, furnishing: controller.Furnishing{RootCA: s.rootCA},
	}
	ticker := time.NewTicker(controlInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		now, since := s.look(vigil)
		v := s.state.View()
		commands := c.reconcile(s.panics, v, hearing{&s.beats, &s.renewals}, since, now)
		s.beats.forget(func(node string) bool { _, ok := v.Nodes.Get(node); return ok })
		s.renewals.forget(func(node string) bool { _, ok := v.Objects.Get(nodeLease(node)); return ok })
		if s.proposeAll(ctx, v, commands) && len(commands) >= controller.Batch {
			continue
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

const (
	// sleepBound: a leader that did not look for longer was asleep. Its own
	// silence is not the workers'.
	sleepBound = 5 * time.Second
	// vigilInterval is how often it looks, whatever else it does.
	vigilInterval = 500 * time.Millisecond
)

// keepVigil looks often enough that only a process that does not run is found
// to have slept, and not one whose log is slow.
func (s *Server) keepVigil(ctx context.Context, vigil *clock.Vigil) {
	guard.Every(ctx, vigilInterval, func(time.Time) { s.look(vigil) })
}

// look tells the state's time, and since when this leader has been awake.
func (s *Server) look(vigil *clock.Vigil) (nowUnixNano, sinceUnixNano int64) {
	now, since, slept := vigil.Look()
	if slept > 0 {
		s.log.Warn("this server did not run for a while; the workers' silence counts from now on", "slept", slept)
	}
	return now, since
}

// proposeAll proposes what controllers want by a view; a refusal means that the state has
// moved on, and the next round looks again. It says whether anything was done.
func (s *Server) proposeAll(ctx context.Context, v *fsm.View, commands []fsm.Command) (done bool) {
	if len(commands) == 0 {
		return false
	}
	rs, _, err := s.proposeEntered(ctx, true, s.decided(v.Revision(), commands...))
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			s.log.Warn("what the controllers want could not be proposed", "commands", len(commands), "error", err)
		}
		return false
	}
	for i, r := range rs {
		if r.Refused() {
			s.log.Debug("a controller's command was refused", "command", fmt.Sprintf("%T", commands[i]), "reason", r.Message)
		}
		done = done || !r.Refused()
	}
	return done
}
