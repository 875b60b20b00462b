/* The explorer of a report: the fitted density, asked in the page.

   Python joins the files of this folder into one script, in the order of SCRIPT in explorer.py. Those from numerics to
   ranges are the density. They follow the Python files line by line, and their functions have their names:
   densities/residuals.py, densities/anyorder/{inputs,network,labels,numbers,tails,ties,density,events}.py,
   densities/tilted/, tables/{margins,encoding,relations,answers}/. A row is an array with NaN for what is hidden: an encoded row x has one entry for
   each encoded column, a row of cells one for each column of the table: null (unknown), a place in the list of values,
   a number X, { places } (one of several values) or { low, high } (a range of X, null for an open end). The others draw
   the page. Every size and constant of the density is read from the data that Python wrote. */
"use strict";

const LOG_SQRT_2PI = 0.5 * Math.log(2 * Math.PI), PEAK = Math.exp(-LOG_SQRT_2PI);
const TAIL = 8; // |t| beyond which probabilities are taken as logarithms
const FAR = 38; // standard deviations at which a normal density is 0 in float64
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const sum = (values) => values.reduce((total, value) => total + value, 0);

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

function logSumExp(values) {
  const top = Math.max(...values);
  return top === -Infinity ? top : top + Math.log(sum(values.map((value) => Math.exp(value - top))));
}

function logSoftmax(values) {
  const total = logSumExp(values);
  return values.map((value) => value - total);
}

/* Φ: a series near 0, a continued fraction in the tails; as exact as float64 allows. */
function normalCdf(t) {
  if (t > 0) return 1 - normalCdf(-t);
  if (t < -3) return Math.exp(logNormalCdf(t));
  const density = Math.exp(-0.5 * t * t - LOG_SQRT_2PI);
  let term = t, total = t;
  for (let k = 3; Math.abs(term) > 1e-17 * Math.abs(total); k += 2) total += term *= (t * t) / k;
  return 0.5 + density * total;
}

/* log Φ(t) for t far below 0. */
function logNormalCdf(t) {
  let fraction = -t;
  for (let k = 80; k > 0; k--) fraction = -t + k / fraction;
  return -0.5 * t * t - LOG_SQRT_2PI - Math.log(fraction);
}

/* Φ⁻¹: Acklam's rational approximation, then Halley's steps. */
function normalQuantile(p) {
  if (p > 0.5) return -normalQuantile(1 - p);
  if (p <= 0) return -Infinity;
  const a = [-39.69683028665376, 220.9460984245205, -275.9285104469687, 138.357751867269, -30.66479806614716, 2.506628277459239];
  const b = [-54.47609879822406, 161.5858368580409, -155.6989798598866, 66.80131188771972, -13.28068155288572, 1];
  const c = [-0.007784894002430293, -0.3223964580411365, -2.400758277161838, -2.549732539343734, 4.374664141464968, 2.938163982698783];
  const d = [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416, 1];
  const at = (coefficients, z) => coefficients.reduce((total, value) => total * z + value, 0);
  const q = Math.sqrt(-2 * Math.log(p)), middle = (p - 0.5) ** 2;
  let t = p < 0.02425 ? at(c, q) / at(d, q) : ((p - 0.5) * at(a, middle)) / at(b, middle);
  for (let step = 0; step < 2; step++) {
    const u = (normalCdf(t) - p) * Math.exp(0.5 * t * t + LOG_SQRT_2PI);
    t -= u / (1 + 0.5 * t * u);
  }
  return t;
}

/* The probability of [a, b] under a standard normal; from the end that is nearer, where probabilities are exact. */
const normalBetween = (a, b) => (a > 0 ? normalCdf(-a) - normalCdf(-b) : normalCdf(b) - normalCdf(a));

/* The number of [a, b] below which a share of its probability lies. */
function normalWithin(a, b, share) {
  if (a > 0) return -normalWithin(-b, -a, 1 - share);
  const low = normalCdf(a);
  return clamp(normalQuantile(low + share * (normalCdf(b) - low)), a, b);
}

/* The first place whose edge is above the value (or not below it), as numpy.searchsorted. */
function search(edges, value, right) {
  let low = 0, high = edges.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (right ? edges[middle] <= value : edges[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Random numbers in [0, 1) from a seed (mulberry32), so that the same page draws the same rows. */
function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let z = Math.imul(state ^ (state >>> 15), 1 | state);
    z = (z + Math.imul(z ^ (z >>> 7), 61 | z)) ^ z;
    return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
  };
}

const randomNormal = (random) => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());

/* A place drawn by weights that need not sum to 1. */
function drawPlace(weights, random) {
  let left = random() * sum(weights);
  for (let i = 0; i < weights.length; i++) if ((left -= weights[i]) < 0) return i;
  return weights.findLastIndex((weight) => weight > 0);
}

/* The place at which a share of the weights is reached, and which share of that place is left over: a new share. */
function placeAt(weights, share) {
  let left = share * sum(weights);
  for (let i = 0; i < weights.length; i++) {
    if (left < weights[i]) return [i, left / weights[i]];
    left -= weights[i];
  }
  return [weights.findLastIndex((weight) => weight > 0), 1];
}
