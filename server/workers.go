package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/store"
)

// maxReportBytes and maxReports bound one ReportPods command: a status may touch
// every disruption budget that covers its pod.
const (
	maxReportBytes = 256 << 10
	maxReports     = 100
)

// WorkerHello implements rpc.WorkerHandler: the worker's node is registered,
// or brought up to date.
//
// That goes through the log even if it changes nothing, and returns once this
// server has applied it: so this server's state now has everything that the
// worker can have been told by another one, and a worker that was restarted
// and remembers no revision is never sent an older set of pods than it runs.
func (s *Server) WorkerHello(ctx context.Context, h *rpc.Hello) error {
	leave, err := s.shares.begin(h.Name)
	if err != nil {
		return err
	}
	defer leave()
	node := new(corev1.Node)
	if err := codec.UnmarshalForeign(h.Node, node); err != nil {
		return fmt.Errorf("%w: the node of worker %s: %w", rpc.ErrInvalid, h.Name, err)
	}
	if node.Name != h.Name {
		return fmt.Errorf("%w: worker %s registers node %q", rpc.ErrInvalid, h.Name, node.Name)
	}
	if err := s.checkNode(node); err != nil {
		return err
	}
	said := heard{now: time.Now()}
	said.nodeStatus(&node.Status)
	s.tellHeard(&said, "node", h.Name, h.Name)
	if err := s.shares.waitHello(ctx, h.Name); err != nil {
		return err
	}
	// Thousands may come at once, after a server or its network was gone.
	select {
	case s.welcoming <- struct{}{}:
		defer func() { <-s.welcoming }()
	case <-ctx.Done():
		return ctx.Err()
	}
	return s.registerNode(ctx, node)
}

// checkNode refuses what a worker may not say of its node.
func (s *Server) checkNode(said *corev1.Node) error {
	old, _ := s.state.View().Nodes.Get(said.Name)
	if err := access.CheckNode(said, old); err != nil {
		return fmt.Errorf("%w: node %s: %w", rpc.ErrInvalid, said.Name, err)
	}
	return nil
}

// maxWelcoming bounds the workers that register at a server at a time, so that
// a herd of them does not starve the consensus.
const maxWelcoming = 64

func (s *Server) registerNode(ctx context.Context, node *corev1.Node) error {
	rs, err := s.Propose(ctx, fsm.Proposal{
		User: workerUser(node.Name), Groups: workerGroups, Command: &fsm.RegisterNode{Node: fsm.NodeWire{Object: node}},
	})
	if err != nil {
		return err
	}
	switch r := rs[0]; {
	case r.Code == http.StatusConflict:
		return fmt.Errorf("%w: %s", rpc.ErrNodeTaken, r.Message)
	case r.Code == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s", rpc.ErrBusy, r.Message)
	case r.Refused():
		return fmt.Errorf("%w: %s", rpc.ErrInvalid, r.Message)
	}
	return nil
}

func workerUser(node string) string { return "system:node:" + node }

// proposeOne proposes one command in the name of whoever asked an operators' endpoint for it, or else of Berth itself.
func (s *Server) proposeOne(ctx context.Context, c fsm.Command) (fsm.Result, error) {
	rs, err := s.Propose(ctx, askedFor(ctx, c))
	if err != nil {
		return fsm.Result{}, err
	}
	return rs[0], nil
}

// operators is the group of what is asked for at operators' endpoints. No request has it: it is only for what comes of one.
const operators = "berth:operators"

// askedFor is a proposal of whoever the context's request is of; where there is none, of Berth itself.
func askedFor(ctx context.Context, c fsm.Command) fsm.Proposal {
	if u, ok := apirequest.UserFrom(ctx); ok {
		return fsm.Proposal{User: u.GetName(), Groups: append([]string{operators}, systemGroups...), Command: c}
	}
	return fsm.Proposal{User: systemUser, Groups: systemGroups, Command: c}
}

// systemGroups are those of Berth's own proposals.
var systemGroups = []string{"system:masters"}

// workerGroups are those of what is proposed because a worker said so.
var workerGroups = []string{access.Workers}

// WorkerStatus implements rpc.WorkerHandler: what a worker reports goes into
// the log. What is refused however often it is said is dropped, and told; the
// rest of its batch counts.
func (s *Server) WorkerStatus(ctx context.Context, node string, b *rpc.StatusBatch) error {
	if err := s.shares.waitBytes(ctx, node, b); err != nil {
		return err
	}
	var ps []fsm.Proposal
	add := func(c fsm.Command) {
		ps = append(ps, fsm.Proposal{User: workerUser(node), Groups: workerGroups, Command: c})
	}
	s.reportedPods(node, b.Pods, add)
	s.reportedNode(node, b.NodeStatus, add)
	must := len(ps)
	ps = append(ps, s.reportedEvents(node, b.Events)...)
	if len(ps) == 0 {
		return nil
	}
	rs, err := s.Propose(ctx, ps...)
	if err != nil {
		return err
	}
	err = s.notTaken(node, ps[:must], rs) // an event that is refused is lost
	late := lateReports(s.state.View(), b.Pods)
	var some *rpc.NotTaken
	switch {
	case len(late) == 0:
		return err
	case err == nil:
		return &rpc.NotTaken{Late: late}
	case errors.As(err, &some):
		some.Late = late
	}
	return err
}

// lateReports are the pods of which a worker has said what was so by a state that is gone. If it was taken, that is gone, too.
func lateReports(v *fsm.View, said []rpc.PodReport) (uids []string) {
	for i := range said {
		if v.IsLate(said[i].Seen) {
			uids = append(uids, said[i].UID)
		}
	}
	return uids
}

// reportedPods adds the commands that say what a worker says of its pods.
func (s *Server) reportedPods(node string, said []rpc.PodReport, add func(fsm.Command)) {
	view := s.state.View()
	// A full state has room for what is said of pods that are to go, and perhaps not for the others'.
	going, staying := reportBatch{node: node, add: add}, reportBatch{node: node, add: add}
	for i := range said {
		r := &said[i]
		if !s.mayReport(view, node, r) {
			continue
		}
		pod, _ := view.Pods.Get(fsm.PodKey(r.Namespace, r.Name))
		if pod != nil && string(pod.UID) != r.UID {
			pod = nil
		}
		report, ok := s.reportedPod(pod, node, r)
		if !ok {
			continue
		}
		if view.Version() >= fsm.SinceSeen {
			report.Seen = r.Seen
		}
		bytes := len(r.Status)
		if report.Status.Object == nil {
			bytes = 0
		}
		if pod != nil && model.Terminating(pod) {
			going.put(report, bytes)
		} else {
			staying.put(report, bytes)
		}
	}
	going.flush()
	staying.flush()
}

// reportBatch makes commands of reports, of a bounded size each.
type reportBatch struct {
	node    string
	add     func(fsm.Command)
	reports []fsm.PodReport
	bytes   int
}

func (b *reportBatch) put(r fsm.PodReport, bytes int) {
	if b.bytes > 0 && b.bytes+bytes > maxReportBytes || len(b.reports) == maxReports {
		b.flush()
	}
	b.reports = append(b.reports, r)
	b.bytes += bytes
}

func (b *reportBatch) flush() {
	if len(b.reports) > 0 {
		b.add(&fsm.ReportPods{Node: b.node, Reports: b.reports})
	}
	b.reports, b.bytes = nil, 0
}

// reportedPod is what the log is to say of a pod, which this server may not know; false: nothing, since it is no status.
func (s *Server) reportedPod(pod *corev1.Pod, node string, r *rpc.PodReport) (fsm.PodReport, bool) {
	report := fsm.PodReport{Key: fsm.PodKey(r.Namespace, r.Name), UID: r.UID, Removed: r.Removed}
	if err := model.CheckPodStatusBytes(len(r.Status)); err != nil {
		s.drop("pod", node, "pod", report.Key, "reason", err.Error(), "bytes", len(r.Status))
		return report, r.Removed // that nothing of the pod is left counts all the same
	}
	if len(r.Status) == 0 {
		return report, true
	}
	report.Status.Object = new(corev1.PodStatus)
	if err := codec.UnmarshalForeign(r.Status, report.Status.Object); err != nil {
		s.drop("pod", node, "pod", report.Key, "reason", err.Error())
		return report, false
	}
	known := pod != nil && pod.Spec.NodeName == node
	if !known {
		pod = nil
	}
	h := heard{now: time.Now()}
	if err := h.podStatus(pod, report.Status.Object); err != nil {
		s.drop("pod", node, "pod", report.Key, "reason", err.Error())
		return report, false
	}
	s.tellHeard(&h, "pod", node, report.Key)
	if known {
		s.said.said(node, r.UID, model.WorkerStatusDigest(report.Status.Object))
	}
	return report, true
}

// reportedNode adds the command that says what a worker says of its node. A
// node that was deleted is made again by its worker's next hello, with its
// labels (Hub.Renew), and not by a status.
func (s *Server) reportedNode(node string, status []byte, add func(fsm.Command)) {
	if _, there := s.state.View().Nodes.Get(node); !there || len(status) == 0 {
		return
	}
	n := new(corev1.Node)
	n.Name = node
	err := codec.UnmarshalForeign(status, &n.Status)
	if err == nil {
		err = s.checkNode(n)
	}
	if err != nil {
		s.drop("node", node, "reason", err.Error())
		return
	}
	h := heard{now: time.Now()}
	h.nodeStatus(&n.Status)
	s.tellHeard(&h, "node", node, node)
	add(&fsm.RegisterNode{Node: fsm.NodeWire{Object: n}})
}

// notTaken is what a worker has to say again of what was proposed; nil: nothing. Where there was no room for any of its pods' statuses it
// says all of it again, soon.
func (s *Server) notTaken(node string, ps []fsm.Proposal, rs []fsm.Result) error {
	var again rpc.NotTaken
	var full error
	taken := false
	for i := range ps {
		r := &rs[i]
		switch c := ps[i].Command.(type) {
		case *fsm.ReportPods:
			if r.Refused() && r.Code != http.StatusTooManyRequests {
				return fmt.Errorf("%w: %w", rpc.ErrInvalid, r.Err())
			}
			taken = taken || !r.Refused()
			if r.Refused() {
				full = fmt.Errorf("%w: %w", rpc.ErrBusy, r.Err())
			}
			for _, report := range c.Reports {
				if r.Refused() || slices.Contains(r.Failed, report.Key) {
					again.Pods = append(again.Pods, report.UID)
				}
			}
		case *fsm.RegisterNode:
			switch {
			case r.Code == http.StatusTooManyRequests:
				again.Node = true
			case r.Refused():
				s.drop("node", node, "reason", r.Message)
			}
		}
	}
	if full != nil && !taken {
		return full
	}
	if again.Node || len(again.Pods) > 0 {
		return &again
	}
	return nil
}

// mayReport: what a worker says of a pod of another node is nobody's business. The rest of its batch counts. Whose pod it is
// the state decides in which the report is committed: this server's may lack the
// binding that the worker was told by another one, or have an older pod of the name.
func (s *Server) mayReport(view *fsm.View, node string, r *rpc.PodReport) bool {
	key := fsm.PodKey(r.Namespace, r.Name)
	if r.UID == "" {
		s.drop("pod", node, "pod", key, "reason", "it is not said which pod of that name it is")
		return false
	}
	if len(r.Status) == 0 && !r.Removed {
		return false // it says nothing, and there is nothing to be kept
	}
	pod, known := view.Pods.Get(key)
	if known && string(pod.UID) == r.UID && pod.Spec.NodeName != "" && pod.Spec.NodeName != node {
		s.drop("pod", node, "pod", key, "reason", "it is another node's")
		return false
	}
	return true
}

// drop counts what a worker says and is not taken, and tells it, unless the worker has had much told of itself lately.
func (s *Server) drop(kind, node string, about ...any) {
	s.metrics.workerDropped.WithLabelValues(kind).Inc()
	if !s.shares.get(node).drops.Allow() {
		return
	}
	s.log.Warn("what a worker says is not taken", append([]any{"node", node}, about...)...)
}

// tellHeard tells of what a worker says what was not taken.
func (s *Server) tellHeard(h *heard, kind, node, key string) {
	if what := h.String(); what != "" {
		s.drop(kind, node, kind, key, "reason", what)
	}
}

// WorkerGone implements rpc.WorkerHandler. Nothing is concluded from a stream
// that broke: the worker may be on its way to another server. Silence is what
// counts.
func (s *Server) WorkerGone(node string, reason error) {
	s.said.forgetNode(node)
	s.samples.store.Forget(node)
	s.log.Debug("a worker's stream ended", "node", node, "reason", reason)
}

// pushLoop hands every change of a bound pod to the worker that runs it, if its
// stream ends here. One goroutine serves all streams.
func (s *Server) pushLoop(ctx context.Context) {
	feed := s.state.Feed()
	at := feed.Last()
	for {
		if err := feed.Wait(ctx, at); err != nil {
			return
		}
		changes, err := feed.After(at, pushBatch)
		if errors.Is(err, store.ErrCompacted) {
			// This server was replaced by a snapshot, or fell far behind:
			// the workers read everything anew.
			at = feed.Last()
			s.pushed.Store(at)
			s.rpc.Hub.Resync(at)
			s.renewAll()
			s.endAllRevoked()
			continue
		}
		for i := range changes {
			s.guard("push", func() { s.push(&changes[i]) })
		}
		if n := len(changes); n > 0 {
			at = changes[n-1].Revision
		}
		s.pushed.Store(at)
		s.rpc.Hub.Advance(at)
	}
}

const pushBatch = 4096

// renewAll makes the workers of nodes that are not there any more register anew.
func (s *Server) renewAll() {
	view := s.state.View()
	for _, node := range s.rpc.Hub.Nodes() {
		if _, there := view.Nodes.Get(node); !there {
			s.rpc.Hub.Renew(node, rpc.ErrNodeGone)
		}
	}
}

func (s *Server) push(c *store.Change) {
	if s.tellFollowers(c) {
		return
	}
	if old, ok := c.Old.(*corev1.Node); ok {
		if node, _ := c.New.(*corev1.Node); node == nil {
			s.rpc.Hub.Renew(old.Name, rpc.ErrNodeGone)
		} else if !fsm.NodeReady(old) && fsm.NodeReady(node) && isForgotten(node) {
			s.rpc.Hub.Renew(node.Name, rpc.ErrNodeForgotten)
		} else if !maps.Equal(old.Labels, node.Labels) {
			s.pushLabels(c.Revision, node)
		}
		return
	}
	old, _ := c.Old.(*corev1.Pod)
	pod, _ := c.New.(*corev1.Pod)
	switch {
	case pod != nil && pod.Spec.NodeName != "":
		if !s.rpc.Hub.Holds(pod.Spec.NodeName) || old != nil && !s.concernsWorker(old, pod) {
			return
		}
		raw, err := pod.Marshal()
		if err != nil {
			s.log.Error("a pod can not be sent to its worker", "pod", c.Key, "error", err)
			return
		}
		s.rpc.Hub.Push(pod.Spec.NodeName, rpc.Update{UID: string(pod.UID), Revision: c.Revision, Pod: raw})
	case pod == nil && old != nil && old.Spec.NodeName != "":
		s.said.forget(old.Spec.NodeName, string(old.UID))
		s.rpc.Hub.Push(old.Spec.NodeName, rpc.Update{UID: string(old.UID), Revision: c.Revision})
	}
}

func (s *Server) pushLabels(revision int64, node *corev1.Node) {
	raw, err := labelsOf(node)
	if err != nil {
		s.log.Error("a node's labels can not be sent to its worker", "node", node.Name, "error", err)
		return
	}
	s.rpc.Hub.Push(node.Name, rpc.Update{Revision: revision, Node: raw})
}

// isForgotten: what the node's worker said of it does not count any more, because
// it was lost; its worker says it again only when something changes, and when it
// registers.
func isForgotten(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Status == corev1.ConditionUnknown && c.Reason == fsm.NodeStatusUnknown
	})
}

// concernsWorker: the change is more than the status that the worker itself
// reports. What others make of its part of the status is news to it: it knows
// better. Conditions that others set matter for readiness gates (LC7).
func (s *Server) concernsWorker(old, pod *corev1.Pod) bool {
	node, sum := pod.Spec.NodeName, model.WorkerStatusDigest(&pod.Status)
	if model.WorkerStatusDigest(&old.Status) != sum && s.said.news(node, string(pod.UID), sum) {
		return true
	}
	if old.Spec.NodeName != node || old.Generation != pod.Generation ||
		old.DeletionTimestamp != pod.DeletionTimestamp || old.DeletionGracePeriodSeconds != pod.DeletionGracePeriodSeconds ||
		len(pod.Spec.ReadinessGates) > 0 {
		return true
	}
	return !equality.Semantic.DeepEqual(old.Labels, pod.Labels) || !equality.Semantic.DeepEqual(old.Annotations, pod.Annotations) ||
		!equality.Semantic.DeepEqual(old.Spec.EphemeralContainers, pod.Spec.EphemeralContainers)
}
