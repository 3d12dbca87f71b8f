#!/usr/bin/env perl
# icecream.pl: gives each Icecream a Deployment, and says in its status how that goes.
#
#   icecream.pl --namespace NAMESPACE        it reaches the cluster through KUBECONFIG and kubectl proxy
use strict;
use warnings;
use Getopt::Long;
use HTTP::Tiny;
use JSON::PP;
use POSIX qw(strftime _exit);
use Time::HiRes qw(time sleep);

my $namespace;
GetOptions('namespace=s' => \$namespace) or exit 2;
$namespace //= shift;
if (!defined $namespace || @ARGV) {
    print STDERR "usage: icecream.pl [--namespace] NAMESPACE\n";
    exit 2;
}
my $icecreams   = "/apis/controller.nicoleh.io/v1alpha1/namespaces/$namespace/icecreams";
my $deployments = "/apis/apps/v1/namespaces/$namespace/deployments";
my $json        = JSON::PP->new->utf8->canonical;

# kubectl proxy knows the credentials. Port 0: it takes a free one, and says which.
my $proxy = open(my $said, '-|', qw(kubectl proxy --port=0)) or die "kubectl: $!\n";
my ($base) = (<$said> // '') =~ /Starting to serve on (\S+)/ or die "kubectl proxy has not begun\n";
my @helpers = ($proxy);

sub client {
    HTTP::Tiny->new(agent => 'icecream.pl', timeout => 20, max_redirect => 0, keep_alive => 0,
        proxy => undef, http_proxy => undef, https_proxy => undef, @_);
}

# How long to wait after the nth failure, or as long as the server asks.
sub wait_after {
    my ($failures, $answer) = @_;
    my $delay = 0.1 * 2**($failures > 6 ? 6 : $failures);
    my $asked = $answer->{headers}{'retry-after'} // 0;
    return $asked =~ /^\d+$/ && $asked > $delay ? $asked : $delay;
}

pipe(my $events, my $event) or die "pipe: $!\n";
$event->autoflush(1);

# A process for each watch: it writes a byte for each event, for ever. A watch that says nothing for
# 20 seconds begins anew. Without a resourceVersion, it begins with an event for each object.
sub follow {
    my ($path) = @_;
    defined(my $pid = fork) or die "fork: $!\n";
    if ($pid) { push @helpers, $pid; return }
    close $events;
    my $http = client();
    for (my $failures = 0;;) {
        print $event '.' or _exit(1);
        my $answer = $http->get("http://$base$path?watch=true", {data_callback => sub {
            $failures = 0;
            print $event '.' or _exit(1);
        }});
        $failures = 0 if $answer->{success} || $answer->{content} =~ /^Timed out/; # it was quiet
        sleep 0.9 + wait_after($failures++, $answer);
    }
}
follow($icecreams);
follow($deployments);

# When this process is killed, nobody would end the others; one that waits for the end of a pipe does.
pipe(my $alive, my $lifeline) or die "pipe: $!\n";
defined(my $keeper = fork) or die "fork: $!\n";
if (!$keeper) {
    close $lifeline;
    $SIG{$_} = 'IGNORE' for qw(TERM INT);
    sysread $alive, my $nothing, 1;
    kill TERM => @helpers;
    _exit(0);
}
close $alive;
close $event;
$SIG{$_} = sub { kill TERM => @helpers; _exit(0) } for qw(TERM INT);

my $http = client();

sub request {
    my ($method, $path, $body) = @_;
    my $type = $method eq 'PATCH' ? 'application/merge-patch+json' : 'application/json';
    my $answer = $http->request($method, "http://$base$path",
        $body ? {content => $json->encode($body), headers => {'Content-Type' => $type}} : {});
    if (!$answer->{success}) {
        print STDERR "$method $path: $answer->{status} $answer->{content}\n";
        return (undef, $answer);
    }
    return (eval { $json->decode($answer->{content}) }, $answer);
}

# The part of an object that a write must name: it is refused if the object has changed.
sub version {
    my ($object) = @_;
    return (uid => $object->{metadata}{uid}, resourceVersion => $object->{metadata}{resourceVersion});
}

# The answer to the write of the status, or nothing if it is what it should be.
sub report {
    my ($ice, $d, $reason, $message) = @_;
    my $before = $ice->{status} // {};
    my $status = $reason eq 'Available' ? 'True' : 'False';
    my ($old)  = grep { $_->{type} eq 'Available' } @{$before->{conditions} // []};
    my @others = grep { $_->{type} ne 'Available' } @{$before->{conditions} // []};
    my $after  = {
        observedGeneration => $ice->{metadata}{generation},
        replicas           => $d && ($d->{status}{replicas} // 0),
        availableReplicas  => $d && ($d->{status}{availableReplicas} // 0),
        conditions         => [@others, {
            type => 'Available', status => $status, reason => $reason, message => $message,
            observedGeneration => $ice->{metadata}{generation},
            lastTransitionTime => $old && $old->{status} eq $status
                ? $old->{lastTransitionTime} : strftime('%Y-%m-%dT%H:%M:%SZ', gmtime),
        }],
    };
    my %same = map { $_ => $before->{$_} } keys %$after;
    return if $json->encode(\%same) eq $json->encode($after);
    my (undef, $answer) = request(PATCH => "$icecreams/$ice->{metadata}{name}/status",
        {metadata => {version($ice)}, status => $after});
    return $answer;
}

# Brings one Icecream one step further. Returns the answer of a request that failed.
sub reconcile {
    my ($ice, $d) = @_;
    my $wanted = $ice->{spec}{replicas};
    my $uid    = $ice->{metadata}{uid};
    my $answer;
    if (!$d) {
        my $labels = {'controller.nicoleh.io/uid' => $uid};
        (undef, $answer) = request(POST => $deployments, {
            metadata => {
                name            => $ice->{spec}{deploymentName},
                ownerReferences => [{
                    apiVersion => 'controller.nicoleh.io/v1alpha1', kind => 'Icecream', name => $ice->{metadata}{name},
                    uid => $uid, controller => JSON::PP::true, blockOwnerDeletion => JSON::PP::true,
                }],
            },
            spec => {
                replicas => $wanted,
                selector => {matchLabels => $labels},
                template => {
                    metadata => {labels => $labels},
                    spec     => {containers => [{name => 'icecream', image => 'workshop/pause:1'}]},
                },
            },
        });
    } elsif (!grep { $_->{controller} && $_->{uid} eq $uid } @{$d->{metadata}{ownerReferences} // []}) {
        $answer = report($ice, undef, 'ErrResourceExists', 'the Deployment belongs to somebody else');
    } elsif (!$d->{metadata}{deletionTimestamp} && $d->{spec}{replicas} != $wanted) {
        (undef, $answer) = request(PATCH => "$deployments/$d->{metadata}{name}",
            {metadata => {version($d)}, spec => {replicas => $wanted}});
    } else {
        my $available = ($d->{status}{availableReplicas} // 0) >= $wanted;
        $answer = report($ice, $d, $available ? 'Available' : 'Progressing', '');
    }
    return if !$answer || $answer->{success};
    if ($answer->{status} =~ /^(403|422)$/) { # this may stay so: the status has to say it
        my $why = eval { $json->decode($answer->{content})->{message} } // $answer->{content};
        report($ice, undef, 'Refused', $why);
    }
    return $answer;
}

my (%failures, %not_before); # of each Icecream, by its UID; and of the lists, as ''

# Notes whether a key has failed, and until when it has to wait.
sub note {
    my ($key, $failed) = @_;
    if ($failed) {
        $not_before{$key} = time + wait_after($failures{$key}++, $failed);
    } else {
        delete $failures{$key};
        delete $not_before{$key};
    }
}

# Looks at everything; whose wait is not over is left out.
sub look {
    my %list;
    for my $path ($icecreams, $deployments) {
        ($list{$path}, my $answer) = request(GET => $path);
        if (!$list{$path}) { note('', $answer); return }
    }
    note('');
    my %by_name = map { $_->{metadata}{name} => $_ } @{$list{$deployments}{items}};
    my %here;
    for my $ice (@{$list{$icecreams}{items}}) {
        my $key = $ice->{metadata}{uid};
        $here{$key} = 1;
        next if $ice->{metadata}{deletionTimestamp} || ($not_before{$key} // 0) > time;
        note($key, reconcile($ice, $by_name{$ice->{spec}{deploymentName}}));
    }
    $here{$_} or note($_) for keys %not_before;
}

# Look after each event, or when it is time to try again.
sub wait_event {
    my ($seconds) = @_;
    vec(my $ready = '', fileno $events, 1) = 1;
    return 0 if select($ready, undef, undef, $seconds) <= 0;
    return sysread($events, my $bytes, 65536) || exit 1; # nobody watches any more
}
while (1) {
    my ($next) = sort { $a <=> $b } values %not_before;
    my $delay = defined $next ? $next - time : undef;
    wait_event(defined $delay && $delay < 0 ? 0 : $delay);
    my $wait = ($not_before{''} // 0) - time;
    sleep $wait if $wait > 0; # an event does not pass it
    for (1 .. 10) { wait_event(0.05) or last } # events that come together need one look
    look();
}
