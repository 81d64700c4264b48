package pullrecords

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/worker/runtime"
)

// Bounds of what is kept.
const (
	maxImages = 4096
	maxPulls  = 1024
	maxGrants = 200 // of an image
	maxBefore = 1000
)

const (
	// goneAge is how long an image has not been here until its record goes.
	goneAge = time.Hour
	// unsureAge is how long it takes until a pull of which nobody heard the end has ended. The runtime gives up sooner.
	unsureAge = time.Hour
	// roomAge is goneAge where there are too many records.
	roomAge = time.Minute
)

// Options configure Records.
type Options struct {
	// Dir is where they are kept; it is made. Nobody else writes there.
	Dir string
	// Policy; empty: NeverVerifyPreloadedImages. Allowlist is NeverVerifyAllowlistedImages'.
	Policy    Policy
	Allowlist Allowlist
	// Images lists what the runtime has. Required.
	Images func() ([]runtime.Image, error)
	// Disk and Now default to the machine's, Logger to none.
	Disk   disk.Disk
	Now    func() time.Time
	Logger hclog.Logger
}

// Records are those of a node. They are safe for concurrent use.
type Records struct {
	opts  Options
	log   hclog.Logger
	files atomicfile.Files

	mu       sync.Mutex
	images   map[string]*known    // by the names of their files
	pulls    map[string]*underWay // likewise
	listings uint64               // that have begun
}

// known is an image that was fetched here.
type known struct {
	image
	gone     time.Time // since when no listing has it; zero: the last one did
	doubtful bool      // it may not be on the disk any more
}

// underWay is a pull that may be under way. As long as it is here an image of its repository without a record is not taken for one that nobody fetched.
type underWay struct {
	pull
	running int
	// doubtful: it may not be on the disk any more.
	doubtful bool
	ended    uint64    // how many listings had begun when the last of them ended
	unsure   time.Time // when one of them ended of which it is not known how, and maybe not for the runtime; zero: none did
}

// Open reads the records in a directory.
func Open(o Options) (*Records, error) {
	if o.Disk == nil {
		o.Disk = disk.OS{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.Policy == "" {
		o.Policy = NeverVerifyPreloadedImages
	}
	switch o.Policy {
	case NeverVerify, NeverVerifyPreloadedImages, NeverVerifyAllowlistedImages, AlwaysVerify:
	default:
		return nil, fmt.Errorf("there is no policy %q for the credentials of images", o.Policy)
	}
	r := &Records{opts: o, log: o.Logger, files: atomicfile.Files{Disk: o.Disk}, images: map[string]*known{}, pulls: map[string]*underWay{}}
	err := disk.MkdirAll(o.Disk, o.Dir, 0o700)
	if err == nil {
		err = r.files.Sweep(o.Dir)
	}
	if err == nil {
		err = r.load()
	}
	if err != nil {
		return nil, fmt.Errorf("records of the images that were fetched, in %s: %w", o.Dir, err)
	}
	return r, nil
}

// MayUse says whether a pod may use an image that is here without asking its registry: the name is the pod's, the ref the runtime's. keys are the pod's credentials
// for the image; they are asked for where they count.
func (r *Records) MayUse(name, ref string, keys func() ([]runtime.ImageKey, error)) bool {
	if r.opts.Policy == NeverVerify {
		return true
	}
	repo, err := repository(name)
	if err != nil {
		return false
	}
	fetched, grants := r.grants(repo, ref)
	if !fetched && (r.opts.Policy == NeverVerifyPreloadedImages || r.opts.Policy == NeverVerifyAllowlistedImages && r.opts.Allowlist.has(repo)) {
		return true
	}
	if slices.ContainsFunc(grants, func(g grant) bool { return g.Anyone }) {
		return true
	}
	if !slices.ContainsFunc(grants, func(g grant) bool { return g.Key != nil }) {
		return false
	}
	has, err := keys()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(has, func(k runtime.ImageKey) bool {
		return slices.ContainsFunc(grants, func(g grant) bool { return g.Key != nil && same(*g.Key, k) })
	})
}

// same: credentials that are the same, whoever has them, and those of the same secret, whatever is in it by now. A secret that was made anew is another one.
func same(a, b runtime.ImageKey) bool {
	return a.Hash != "" && a.Hash == b.Hash || sameSecret(&a, &b)
}

func sameSecret(a, b *runtime.ImageKey) bool {
	return a != nil && b != nil && a.UID != "" && a.UID == b.UID && a.Namespace == b.Namespace && a.Name == b.Name
}

// grants are those for an image under a name; fetched: it was, or may have been, fetched here.
func (r *Records) grants(repo, ref string) (fetched bool, _ []grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []grant
	k := r.images[imageFile(ref)]
	if k != nil {
		for _, g := range k.Grants {
			if g.Repository == repo {
				out = append(out, g)
			}
		}
	}
	if k.fetchedFrom(pullFile(repo)) {
		return true, out
	}
	p := r.pulls[pullFile(repo)]
	return p != nil && !slices.Contains(p.Before, ref), nil
}

// fetchedFrom says whether an image was, or may have been, fetched from the repository whose pulls are noted in that file. nil was not.
func (k *known) fetchedFrom(file string) bool {
	return k != nil && (k.More || slices.ContainsFunc(k.Grants, func(g grant) bool { return pullFile(g.Repository) == file }))
}

// Begin notes, before a registry is asked, that an image is going to be fetched. Without an error Pulled or Failed has to be called when that has ended. With an error
// it must not be fetched: it could be taken for one that nobody fetched.
func (r *Records) Begin(name string) error {
	repo, err := repository(name)
	if err != nil {
		return err
	}
	if joined, err := r.join(repo); joined || err != nil {
		return err
	}
	images, err := r.opts.Images()
	if err != nil {
		return fmt.Errorf("listing the images that are here: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if joined, err := r.joinLocked(repo); joined || err != nil {
		return err
	}
	if len(r.pulls) >= maxPulls {
		if err := r.settleOne(images); err != nil {
			return fmt.Errorf("noting that an image is fetched: %w", err)
		}
	}
	p := &underWay{pull: pull{Version: version, Repository: repo}, running: 1}
	for _, i := range images {
		if _, is := named(i, pullFile(repo)); is && len(p.Before) < maxBefore && !r.images[imageFile(i.Ref)].fetchedFrom(pullFile(repo)) {
			p.Before = append(p.Before, i.Ref)
		}
	}
	if err := r.write(pullFile(repo), p.pull); err != nil {
		return fmt.Errorf("noting that an image is fetched: %w", err)
	}
	r.pulls[pullFile(repo)] = p
	return nil
}

// named is by which repository an image is called whose pulls are noted in that file.
func named(i runtime.Image, file string) (repo string, ok bool) {
	for _, name := range i.Names {
		if repo, err := repository(name); err == nil && pullFile(repo) == file {
			return repo, true
		}
	}
	return "", false
}

func (r *Records) join(repo string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.joinLocked(repo)
}

// joinLocked counts one more pull, where it is noted already that there are some.
func (r *Records) joinLocked(repo string) (bool, error) {
	p := r.pulls[pullFile(repo)]
	if p == nil {
		return false, nil
	}
	if p.doubtful {
		if err := r.write(pullFile(repo), p.pull); err != nil {
			return false, fmt.Errorf("noting that an image is fetched: %w", err)
		}
		p.doubtful = false
	}
	p.running++
	return true, nil
}

// Pulled notes that an image was fetched, by whose credentials; nil: by none of a pod's.
func (r *Records) Pulled(name, ref string, by *runtime.ImageKey) {
	repo, err := repository(name)
	if err != nil {
		return // it did not begin
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.grant(ref, grant{Repository: repo, Anyone: by == nil, Key: by}); err != nil {
		r.log.Warn("it could not be noted who may use an image; its registry is asked again", "image", name, "error", err)
	}
	r.end(repo, true)
}

// Failed notes that an image was not fetched. over: the runtime said so, and goes on with nothing.
func (r *Records) Failed(name string, over bool) {
	repo, err := repository(name)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end(repo, over)
}

func (r *Records) end(repo string, over bool) {
	p := r.pulls[pullFile(repo)]
	if p == nil {
		return
	}
	p.running--
	p.ended = r.listings
	if !over {
		p.unsure = r.opts.Now()
	}
}

// grant adds to an image's record.
func (r *Records) grant(ref string, g grant) error {
	file := imageFile(ref)
	k := r.images[file]
	if k == nil {
		if err := r.makeRoom(); err != nil {
			return err
		}
		k = &known{}
	}
	to := image{Version: version, Ref: ref, More: k.More}
	for _, old := range k.Grants {
		if old.Repository == g.Repository {
			switch {
			case (old.Anyone || old.Key != nil && g.Key != nil && *old.Key == *g.Key) && !k.doubtful:
				return nil // nothing new
			case g.Anyone, old.Key == nil, sameSecret(old.Key, g.Key):
				continue
			}
		}
		to.Grants = append(to.Grants, old)
	}
	to.Grants = append(to.Grants, g)
	if len(to.Grants) > maxGrants {
		dropped := to.Grants[0]
		to.Grants = to.Grants[1:]
		to.More = to.More || !slices.ContainsFunc(to.Grants, func(g grant) bool { return g.Repository == dropped.Repository })
	}
	if err := r.write(file, to); err != nil {
		return err
	}
	r.images[file] = &known{image: to}
	return nil
}

var errFull = errors.New("there are too many images")

// makeRoom forgets the image that has been gone for longest, where there are too many records.
func (r *Records) makeRoom() error {
	if len(r.images) < maxImages {
		return nil
	}
	var oldest string
	now := r.opts.Now()
	for file, k := range r.images {
		if !k.gone.IsZero() && now.Sub(k.gone) >= roomAge && (oldest == "" || k.gone.Before(r.images[oldest].gone)) {
			oldest = file
		}
	}
	if oldest == "" {
		return errFull
	}
	return r.forget(oldest)
}

func (r *Records) forget(file string) error {
	if err := r.remove(file); err != nil {
		r.images[file].doubtful = true
		return err
	}
	delete(r.images, file)
	return nil
}

// Listing is called before the images are listed; what it returns goes to Listed with them.
func (r *Records) Listing() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listings++
	return r.listings
}

// Listed takes what the runtime has: records of what has not been here for an hour go, and those of pulls that have ended. It is called every few seconds, or minutes.
func (r *Records) Listed(listing uint64, images []runtime.Image) {
	here := map[string]bool{}
	for _, i := range images {
		here[imageFile(i.Ref)] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.opts.Now()
	var failed error
	for file, k := range r.images {
		switch {
		case here[file]:
			k.gone = time.Time{}
			if k.doubtful {
				err := r.write(file, k.image)
				k.doubtful = err != nil
				failed = errors.Join(failed, err)
			}
		case k.gone.IsZero():
			k.gone = now
		case now.Sub(k.gone) >= goneAge:
			failed = errors.Join(failed, r.forget(file))
		}
	}
	for file, p := range r.pulls {
		if p.running == 0 && p.ended < listing && (p.unsure.IsZero() || now.Sub(p.unsure) >= unsureAge) {
			failed = errors.Join(failed, r.settle(file, images))
		}
	}
	if failed != nil {
		r.log.Warn("records of images that were fetched could not be brought up to date", "error", failed)
	}
}

// settle removes the record of pulls that have ended. What came of them and has no record is nobody's before its registry is asked.
func (r *Records) settle(file string, images []runtime.Image) error {
	p := r.pulls[file]
	for _, i := range images {
		if slices.Contains(p.Before, i.Ref) || r.images[imageFile(i.Ref)].fetchedFrom(file) {
			continue
		}
		if repo, ok := named(i, file); ok {
			if err := r.grant(i.Ref, grant{Repository: repo}); err != nil {
				return err
			}
		}
	}
	if err := r.remove(file); err != nil {
		p.doubtful = true
		return err
	}
	delete(r.pulls, file)
	return nil
}

// settleOne is settle for those pulls that have been over for longest although nobody heard so.
func (r *Records) settleOne(images []runtime.Image) error {
	var oldest string
	for file, p := range r.pulls {
		if p.running == 0 && (oldest == "" || p.unsure.Before(r.pulls[oldest].unsure)) {
			oldest = file
		}
	}
	if oldest == "" {
		return errFull
	}
	return r.settle(oldest, images)
}
