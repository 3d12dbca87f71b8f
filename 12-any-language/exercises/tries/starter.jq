# Reads a list of Icecreams and one of Deployments, and prints the names of the Deployments that
# are left of an earlier deploymentName.

# left says whether $d is left of an earlier name of $ice.
def left($ice; $d): error("task 12.1a is not done yet");

(input | .items) as $icecreams | input | .items[] as $d | $icecreams[] | select(left(.; $d)) | $d.metadata.name
