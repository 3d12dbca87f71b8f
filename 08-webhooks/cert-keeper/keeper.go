package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	typedcrd "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedadmission "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/k8s-go/workshop/06-controller/loop"
)

// manager is the field manager of everything that cert-keeper writes.
const manager = "cert-keeper"

// What people write, to ask for something.
const (
	group = "cert-keeper.k8s-go.openshift.org/"
	// On a Service: the name of the Secret that gets its certificate.
	secretAnnotation = group + "secret"
	// On a Service: names and addresses that the certificate is for, beside those of the
	// Service. Only what -allow-hosts lists: whoever may annotate Services could else be anybody.
	hostsAnnotation = group + "hosts"
	// On a webhook configuration or a CRD: NAMESPACE/NAME of the CA whose certificates go into caBundle.
	injectAnnotation = group + "inject-ca"
	// On the CA's Secret, with any value: begin a rotation now.
	rotateAnnotation = group + "rotate"

	// caLabel is on all Secrets that belong to a CA, so that no others are cached.
	caLabel = group + "ca"
)

// patience is how long to wait for a cache that does not show our own write yet, and
// patienceWithOthers for a Secret of somebody else, whose events do not come here.
const (
	patience           = time.Second
	patienceWithOthers = 20 * time.Second
)

// settings are what the user of a keeper chooses.
type settings struct {
	ca                       cache.ObjectName
	allowed                  []string // hosts
	caLifetime, leafLifetime time.Duration
	settle                   time.Duration
}

// A keeper keeps one CA, and everything that depends on it. All of that is brought to its
// state in one pass, under one key: a rotation goes on only when nothing at all is left to do.
type keeper struct {
	settings
	loop      *loop.Loop
	factories []loop.Informers
	recorder  events.EventRecorder
	writes    loop.Writes

	secretsClient   typedcore.SecretsGetter
	admissionClient typedadmission.AdmissionregistrationV1Interface
	crdClient       typedcrd.CustomResourceDefinitionsGetter
	services        cache.Indexer
	secrets         cache.Indexer
	validating      cache.Indexer
	mutating        cache.Indexer
	crds            cache.Indexer
	calmVersion     string               // the CA's resourceVersion when everything was first as it should be
	calmSince       time.Time            // and when that was
	refused         map[types.UID]string // of Services, in this pass ...
	refusedBefore   map[types.UID]string // ... and in the last one
	now             func() time.Time
}

func newKeeper(client kubernetes.Interface, definitions clientset.Interface, recorder events.EventRecorder, namespace string, resync time.Duration, s settings, options loop.Options) (*keeper, error) {
	if err := loop.CheckFlags(namespace, resync); err != nil {
		return nil, err
	}
	k := &keeper{settings: s, recorder: recorder, now: time.Now,
		// The workers' requests are sent once, see loop.Once.
		secretsClient:   typedcore.New(loop.Once(client.CoreV1().RESTClient())),
		admissionClient: typedadmission.New(loop.Once(client.AdmissionregistrationV1().RESTClient())),
		crdClient:       typedcrd.New(loop.Once(definitions.ApiextensionsV1().RESTClient())),
	}
	options.Workers = 1 // there is one key
	k.loop = loop.New(manager, k.reconcile, options)

	all := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithNamespace(namespace))
	ours := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = caLabel + "=" + k.label() }))
	crds := apiextensions.NewSharedInformerFactory(definitions, resync)
	k.factories = []loop.Informers{all, ours, crds}

	for _, watched := range []struct {
		into *cache.Indexer
		cache.SharedIndexInformer
	}{
		{&k.services, all.Core().V1().Services().Informer()},
		{&k.secrets, ours.Core().V1().Secrets().Informer()},
		{&k.validating, all.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()},
		{&k.mutating, all.Admissionregistration().V1().MutatingWebhookConfigurations().Informer()},
		{&k.crds, crds.Apiextensions().V1().CustomResourceDefinitions().Informer()},
	} {
		*watched.into = watched.GetIndexer()
		if err := watched.SetTransform(k.trim); err != nil {
			return nil, err
		}
		if err := k.loop.Watch(watched, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { k.changed(o, "added") },
			UpdateFunc: func(old, now any) { k.changed(old, "was"); k.changed(now, "updated") },
			DeleteFunc: func(o any) {
				if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = tombstone.Obj
				}
				k.changed(o, "deleted")
			},
		}); err != nil {
			return nil, err
		}
	}
	k.loop.Add(k.ca, "start") // a CA is made before anybody asks for a certificate
	return k, nil
}

// changed queues the only key, if the object has to do with this CA.
func (k *keeper) changed(o any, what string) {
	object, ok := o.(metav1.Object)
	if !ok {
		return
	}
	switch o.(type) {
	case *corev1.Secret: // all that are watched carry the label
	case *corev1.Service:
		if object.GetAnnotations()[secretAnnotation] == "" {
			return
		}
	default:
		if object.GetAnnotations()[injectAnnotation] != k.ca.String() {
			return
		}
	}
	k.loop.Add(k.ca, fmt.Sprintf("%T %s %s", o, object.GetName(), what))
}

// trim drops what this controller never reads, above all the schemas of foreign CRDs.
func (k *keeper) trim(o any) (any, error) {
	if object, ok := o.(metav1.Object); ok {
		object.SetManagedFields(nil)
		if crd, ok := o.(*apiextensionsv1.CustomResourceDefinition); ok {
			crd.Spec.Versions, crd.Status = nil, apiextensionsv1.CustomResourceDefinitionStatus{}
		}
	}
	return o, nil
}

// label is the value of caLabel. A slash is not allowed in one.
func (k *keeper) label() string { return k.ca.Namespace + "." + k.ca.Name }

// reconcile issues what is missing, says whom to trust, and then, when nothing was left to
// do for long enough, takes the rotation one phase further.
func (k *keeper) reconcile(ctx context.Context, key cache.ObjectName) (again time.Duration, err error) {
	k.loop.Phase(key, "catch up")
	if k.writes.Behind(key) {
		return patience, loop.ErrBehind
	}
	k.loop.Phase(key, "authority")
	secret, a, err := k.authority(ctx)
	if err != nil || a == nil {
		return 0, err
	}
	k.loop.Phase(key, "leaves")
	wrote, next, errs, none := k.leaves(ctx, a)
	k.loop.Phase(key, "bundles")
	for _, target := range k.targets() {
		changed, err := k.inject(ctx, target, a.bundle())
		if target.trusts(a) {
			wrote = wrote || changed
			errs = append(errs, err)
		} else {
			none = errors.Join(none, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		k.calmVersion = ""
		return 0, errors.Join(err, none)
	}
	if wrote {
		k.calmVersion = ""
		return patience, none // the events of these writes come sooner
	}
	k.loop.Phase(key, "rotate")
	again, err = k.rotate(ctx, secret, a, next)
	if a.phase() != "steady" && loop.RetryAfter(none) == 0 {
		none = nil // each phase tries them again; the back-off after an error would hold up the rotation
	}
	return again, errors.Join(err, none)
}

// authority reads the CA, or makes it. It returns nil while the CA's namespace goes away.
func (k *keeper) authority(ctx context.Context) (*corev1.Secret, *authority, error) {
	o, exists, err := k.secrets.GetByKey(k.ca.String())
	if err != nil {
		return nil, nil, err
	}
	if exists {
		secret := o.(*corev1.Secret)
		a, err := readAuthority(secret.Data)
		if err != nil {
			// Not replaced: whatever has been issued would be worth nothing from one moment to the next.
			return nil, nil, fmt.Errorf("the Secret %s is no CA: %w; restore it, or delete it to begin with a new CA, which nobody trusts at first", k.ca, err)
		}
		return secret, a, nil
	}
	a, err := newAuthority(k.caLifetime)
	if err != nil {
		return nil, nil, fmt.Errorf("making a CA: %w", err)
	}
	data, err := a.data()
	if err != nil {
		return nil, nil, fmt.Errorf("writing down the CA: %w", err)
	}
	secret, err := k.secretsClient.Secrets(k.ca.Namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.ca.Namespace, Name: k.ca.Name, Labels: map[string]string{caLabel: k.label()}}, Data: data,
	}, metav1.CreateOptions{FieldManager: manager})
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil, nil, nil
	case apierrors.IsAlreadyExists(err):
		foreign, err := k.foreign(ctx, k.ca, nil)
		if err == nil && foreign {
			err = fmt.Errorf("the Secret %s is somebody else's: choose another name with -ca", k.ca)
		}
		return nil, nil, err
	case err != nil:
		return nil, nil, fmt.Errorf("creating the Secret of the CA: %w", err)
	}
	k.wrote(k.secrets, secret, "new CA")
	return secret, a, nil
}

// leaves issues a certificate for each Service that asks for one, if it has none that is good
// for a while. next is when the first of them has to be replaced. none is about Services that
// have never had one: nobody trusts anything of theirs yet, so no rotation waits for them, nor
// for a target that has never trusted this CA.
func (k *keeper) leaves(ctx context.Context, a *authority) (wrote bool, next time.Time, errs []error, none error) {
	wanted := map[cache.ObjectName]*corev1.Service{} // by Secret
	k.refusedBefore, k.refused = k.refused, map[types.UID]string{}
	for _, service := range sorted[*corev1.Service](k.services) {
		name := service.Annotations[secretAnnotation]
		if name == "" || service.DeletionTimestamp != nil {
			continue
		}
		secret := cache.NewObjectName(service.Namespace, name)
		hosts, err := k.hosts(service)
		if wrong := validation.NameIsDNSSubdomain(name, false); len(wrong) > 0 {
			err = fmt.Errorf("no Secret can have the name %q: %s", name, wrong[0])
		}
		if first := wanted[secret]; err == nil && first != nil {
			err = isThatOf(name, first.Name)
		}
		if err == nil {
			err = k.taken(service, secret) // before it can be wanted: the owner may come later in this order
		}
		if err != nil {
			k.refuse(service, err)
			continue // it gets nothing, and it does not stop the rotation of all others
		}
		wanted[secret] = service
		moved, renewal, first, err := k.leaf(ctx, a, service, secret, hosts)
		if before, said := k.refusedBefore[service.UID]; said && err != nil && k.refused[service.UID] == "" {
			k.refused[service.UID] = before // nobody knows whether it is over
		}
		if first {
			none = errors.Join(none, err)
		} else {
			wrote = wrote || moved // nothing else restarts a wait: where many come, or lives are short, a rotation would never end
			errs = append(errs, err)
		}
		if !renewal.IsZero() && (next.IsZero() || renewal.Before(next)) {
			next = renewal
		}
	}
	return wrote, next, errs, none
}

// leaf looks after the certificate of one Service. moved says whether the one that it has replaced was
// another CA's, and first whether it would be its first one.
func (k *keeper) leaf(ctx context.Context, a *authority, service *corev1.Service, name cache.ObjectName, hosts []string) (moved bool, next time.Time, first bool, err error) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{caLabel: k.label()},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service"))}},
		Type: corev1.SecretTypeTLS,
	}
	o, exists, err := k.secrets.GetByKey(name.String())
	if err != nil {
		return false, next, false, err
	}
	why := "there was none"
	if exists {
		secret = o.(*corev1.Secret).DeepCopy()
		if next, why = a.signing.wrongWith(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey], hosts, k.now()); why == "" {
			return false, next, false, nil
		}
		if secret.Immutable != nil && *secret.Immutable { // whoever has made it so holds up nobody else's rotation
			k.refuse(service, fmt.Errorf("the Secret %s is immutable: delete it, and there will be another one", name.Name))
			return false, next, false, nil
		}
	} else if foreign, err := k.foreign(ctx, name, service); foreign || err != nil {
		if foreign {
			k.refuse(service, somebodyElses(name.Name))
			next = k.now().Add(patienceWithOthers)
		}
		return false, next, !errors.Is(err, loop.ErrStale) && !errors.As(err, new(unlabelled)), err // where the cache is behind, it has had one
	}
	moves := exists && !a.signing.signed(secret.Data[corev1.TLSCertKey]) // from one CA to the next
	certificate, private, err := a.signing.leaf(hosts, k.leafLifetime)
	if err != nil {
		return false, next, !exists, fmt.Errorf("issuing a certificate for Service %s: %w", klog.KObj(service), err)
	}
	secret.Data = map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: private}
	if exists { // with its resourceVersion: what we have looked at, or nothing
		secret, err = k.secretsClient.Secrets(name.Namespace).Update(ctx, secret, metav1.UpdateOptions{FieldManager: manager})
	} else {
		secret, err = k.secretsClient.Secrets(name.Namespace).Create(ctx, secret, metav1.CreateOptions{FieldManager: manager})
	}
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return false, next, !exists, nil
	case exists && apierrors.IsNotFound(err):
		return false, next, false, loop.ErrStale // as for a caBundle
	case !exists && apierrors.IsForbidden(err): // of a quota or a policy, for example
		k.refuse(service, err)
		fallthrough
	case err != nil:
		return false, next, !exists, fmt.Errorf("writing the certificate of Service %s: %w", klog.KObj(service), err)
	}
	k.wrote(k.secrets, secret, why)
	return moves, next, !exists, nil
}

// taken says whose a Secret of the cache is, if it is not that of a Service.
func (k *keeper) taken(service *corev1.Service, name cache.ObjectName) error {
	o, exists, err := k.secrets.GetByKey(name.String())
	if err != nil || !exists {
		return err
	}
	secret := o.(*corev1.Secret)
	if metav1.IsControlledBy(secret, service) {
		if secret.Type != corev1.SecretTypeTLS { // which may want other keys
			return fmt.Errorf("the Secret %s is of type %s, which cannot change: delete it, and there will be another one", name.Name, secret.Type)
		}
		return nil
	}
	if owner := metav1.GetControllerOf(secret); owner != nil && owner.Kind == "Service" && owner.Name != service.Name {
		return isThatOf(name.Name, owner.Name)
	}
	return somebodyElses(name.Name)
}

func isThatOf(secret, service string) error {
	return fmt.Errorf("the Secret %s is that of the Service %s", secret, service)
}

func somebodyElses(secret string) error {
	return fmt.Errorf("the Secret %s belongs to somebody else", secret)
}

// foreign reports whether a Secret exists that the cache does not have, because it is somebody else's.
// If it is ours, the cache is behind, and the error says so. So it is if somebody has taken our label from
// that of a Service, which gets it back: without, no rotation would wait for its certificate.
func (k *keeper) foreign(ctx context.Context, name cache.ObjectName, service *corev1.Service) (bool, error) {
	secret, err := k.secretsClient.Secrets(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading the Secret %s: %w", name, err)
	case secret.Labels[caLabel] == "" && service != nil && metav1.IsControlledBy(secret, service) && secret.Type == corev1.SecretTypeTLS:
		metav1.SetMetaDataLabel(&secret.ObjectMeta, caLabel, k.label())
		if secret, err = k.secretsClient.Secrets(name.Namespace).Update(ctx, secret, metav1.UpdateOptions{FieldManager: manager}); err != nil {
			return false, unlabelled{fmt.Errorf("the Secret %s has lost its label, which it does not get back: %w", name, err)}
		}
		k.wrote(k.secrets, secret, "the label was gone")
	case secret.Labels[caLabel] != k.label():
		return true, nil
	}
	return false, fmt.Errorf("the Secret %s was made a moment ago: %w", name, loop.ErrStale)
}

// An unlabelled error is about a certificate of ours that the cache does not hold. The rotation waits for it.
type unlabelled struct{ error }

func (u unlabelled) Unwrap() error { return u.error }

// hosts are what a Service's certificate is for.
func (k *keeper) hosts(service *corev1.Service) ([]string, error) {
	name := service.Name + "." + service.Namespace + ".svc"
	// The API server asks for the first one. Shorter names mean other Services in other namespaces.
	hosts := []string{name, name + ".cluster.local"}
	for host := range strings.SplitSeq(service.Annotations[hostsAnnotation], ",") {
		switch host = strings.TrimSpace(host); {
		case host == "":
		case !slices.Contains(k.allowed, host):
			return nil, fmt.Errorf("the host %s is not one that -allow-hosts lists", host)
		default:
			if ip := net.ParseIP(host); ip != nil {
				host = ip.String() // a certificate has addresses as numbers, so of its spellings one has to count
			}
			hosts = append(hosts, host)
		}
	}
	return hosts, nil
}

// refuse says once what a Service cannot have.
func (k *keeper) refuse(service *corev1.Service, why error) {
	said := loop.Cut(why.Error(), loop.MaxNote) // it quotes what people have written
	k.refused[service.UID] = said
	if k.refusedBefore[service.UID] == said {
		return
	}
	klog.Background().Info("No certificate", "service", klog.KObj(service), "because", said)
	k.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: service.Namespace, Name: service.Name, UID: service.UID},
		nil, corev1.EventTypeWarning, "Refused", "Issue", "%s", said)
}

// A target is an object with places for a caBundle.
type target struct {
	metav1.Object
	store   cache.Indexer
	bundles map[string][]byte // by their JSON pointer
	patch   func(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions) (metav1.Object, error)
}

// trusts reports whether a client of the target trusts what this CA has signed.
func (t target) trusts(a *authority) bool {
	for _, bundle := range t.bundles {
		for _, c := range a.trusted {
			if bytes.Contains(bundle, certificatePEM(c.Raw)) {
				return true
			}
		}
	}
	return false
}

// targets are the webhook configurations and CRDs that ask for this CA.
func (k *keeper) targets() (all []target) {
	asks := func(o metav1.Object) bool {
		return o.GetAnnotations()[injectAnnotation] == k.ca.String() && o.GetDeletionTimestamp() == nil
	}
	place := func(i int) string { return fmt.Sprintf("/webhooks/%d/clientConfig/caBundle", i) }
	for _, o := range sorted[*admissionregistrationv1.ValidatingWebhookConfiguration](k.validating) {
		if asks(o) {
			t := target{o, k.validating, map[string][]byte{}, patcher(k.admissionClient.ValidatingWebhookConfigurations().Patch)}
			for i, w := range o.Webhooks {
				t.bundles[place(i)] = w.ClientConfig.CABundle
			}
			all = append(all, t)
		}
	}
	for _, o := range sorted[*admissionregistrationv1.MutatingWebhookConfiguration](k.mutating) {
		if asks(o) {
			t := target{o, k.mutating, map[string][]byte{}, patcher(k.admissionClient.MutatingWebhookConfigurations().Patch)}
			for i, w := range o.Webhooks {
				t.bundles[place(i)] = w.ClientConfig.CABundle
			}
			all = append(all, t)
		}
	}
	for _, o := range sorted[*apiextensionsv1.CustomResourceDefinition](k.crds) {
		if c := o.Spec.Conversion; asks(o) && c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil {
			all = append(all, target{o, k.crds, map[string][]byte{"/spec/conversion/webhook/clientConfig/caBundle": c.Webhook.ClientConfig.CABundle},
				patcher(k.crdClient.CustomResourceDefinitions().Patch)})
		}
	}
	return all
}

// inject writes the bundle wherever it is missing. The patch carries the resourceVersion,
// because it finds a webhook by its number in the list.
func (k *keeper) inject(ctx context.Context, t target, bundle []byte) (wrote bool, err error) {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	patch := []operation{{"replace", "/metadata/resourceVersion", t.GetResourceVersion()}}
	for place, now := range t.bundles {
		if !bytes.Equal(now, bundle) {
			patch = append(patch, operation{"add", place, bundle}) // base64, as in the API
		}
	}
	if len(patch) == 1 {
		return false, nil
	}
	data, err := json.Marshal(patch)
	if err != nil {
		return false, err
	}
	now, err := t.patch(ctx, t.GetName(), types.JSONPatchType, data, metav1.PatchOptions{FieldManager: manager})
	if apierrors.IsNotFound(err) {
		return false, loop.ErrStale // if it is gone, the cache will show that; if not, the next phase must not begin
	}
	if err != nil {
		return false, fmt.Errorf("writing the caBundle of %s: %w", t.GetName(), err)
	}
	k.wrote(t.store, now, "another bundle")
	return true, nil
}

// rotate goes one phase further, or says when to look again.
func (k *keeper) rotate(ctx context.Context, secret *corev1.Secret, a *authority, next time.Time) (again time.Duration, err error) {
	now := k.now()
	if k.calmVersion != secret.ResourceVersion {
		k.calmVersion, k.calmSince = secret.ResourceVersion, now // this process has to have seen it: after a restart the wait begins anew
	}
	wait := k.settle - now.Sub(k.calmSince)
	_, asked := secret.Annotations[rotateAnnotation]
	var further *authority
	switch {
	case a.phase() == "steady" && (asked || old(a.signing.certificate, now)):
		if further, err = a.introduce(k.caLifetime); err != nil {
			return 0, fmt.Errorf("making the next CA: %w", err)
		}
	case a.phase() == "steady":
		if ca := renewal(a.signing.certificate); next.IsZero() || ca.Before(next) {
			next = ca
		}
		return max(next.Sub(now), time.Second), nil
	case wait > 0:
		if !next.IsZero() { // a certificate may end before that
			wait = min(wait, max(next.Sub(now), time.Second))
		}
		return wait, nil
	case a.phase() == "introduce":
		further = a.replace()
	default:
		further = a.retire()
	}
	updated := secret.DeepCopy()
	if a.phase() != "replace" { // then it asks for another one, after this
		delete(updated.Annotations, rotateAnnotation)
	}
	if updated.Data, err = further.data(); err != nil {
		return 0, fmt.Errorf("writing down the CA: %w", err)
	}
	if updated, err = k.secretsClient.Secrets(k.ca.Namespace).Update(ctx, updated, metav1.UpdateOptions{FieldManager: manager}); err != nil {
		return 0, fmt.Errorf("going from phase %s to %s: %w", a.phase(), further.phase(), err)
	}
	k.wrote(k.secrets, updated, "phase "+further.phase())
	k.recorder.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: k.ca.Namespace, Name: k.ca.Name, UID: secret.UID},
		nil, corev1.EventTypeNormal, "Rotation", "Rotate", "phase %s", further.phase())
	return patience, nil
}

// wrote notes a write of ours.
func (k *keeper) wrote(store cache.Indexer, o metav1.Object, why string) {
	k.writes.Record(k.ca, store, o.GetResourceVersion())
	klog.Background().Info("Wrote", "object", klog.KObj(o), "type", fmt.Sprintf("%T", o), "because", why)
}

// patcher makes one function of the typed clients' different ones.
func patcher[T metav1.Object](patch func(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)) func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions) (metav1.Object, error) {
	return func(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions) (metav1.Object, error) {
		return patch(ctx, name, kind, data, options)
	}
}

// sorted returns what a cache holds in the order of the names, so that two passes do the same.
func sorted[T metav1.Object](store cache.Indexer) []T {
	var all []T
	for _, o := range store.List() {
		all = append(all, o.(T))
	}
	slices.SortFunc(all, func(a, b T) int {
		return strings.Compare(cache.MetaObjectToName(a).String(), cache.MetaObjectToName(b).String())
	})
	return all
}
