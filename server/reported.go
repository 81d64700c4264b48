package server

import "sync"

// reportedStatuses says which changes of pods' statuses are news to the workers whose streams end here: all but those
// that a worker has made itself. It holds a pod only while what the worker said, or was told, is on its way. It is safe
// for concurrent use.
type reportedStatuses struct {
	mu    sync.Mutex
	nodes map[string]map[string]reportedStatus // by node and the pod's UID
}

// reportedStatus is what passed between a worker and this server about one pod.
type reportedStatus struct {
	sum  uint64 // of what the worker reported last (model.WorkerStatusDigest)
	said bool   // sum is known
	told bool   // the worker was sent another status than its own since
}

func (r *reportedStatuses) set(node, uid string, s reportedStatus) {
	if r.nodes == nil {
		r.nodes = map[string]map[string]reportedStatus{}
	}
	if r.nodes[node] == nil {
		r.nodes[node] = map[string]reportedStatus{}
	}
	r.nodes[node][uid] = s
}

// said takes note of a report that is about to be proposed. The pod must be one of the node's.
func (r *reportedStatuses) said(node, uid string, sum uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(node, uid, reportedStatus{sum: sum, said: true, told: r.nodes[node][uid].told})
}

// news says whether the worker has to be told of the status that the state holds now: it is not its own, or it is again
// after it was not.
func (r *reportedStatuses) news(node, uid string, sum uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.nodes[node][uid]
	if s.said && s.sum == sum {
		delete(r.nodes[node], uid)
		return s.told
	}
	s.told = true
	r.set(node, uid, s)
	return true
}

// forget drops a pod that is gone.
func (r *reportedStatuses) forget(node, uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes[node], uid)
}

// forgetNode drops all of a worker whose stream ended: the next one begins with all that the state holds.
func (r *reportedStatuses) forgetNode(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, node)
}
